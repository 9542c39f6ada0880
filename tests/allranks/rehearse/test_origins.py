"""The line that made a tensor on the wrong device, by its name in the reader's code."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from allranks.rehearse import origins

SOURCE = """import torch
def meet(mask):
    raise Apart(mask)
def once():
    made = torch.ones(2)
    meet(made)
def twice():
    made = torch.ones(2)
    if made.sum():
        made = made + 1
    meet(made)
def loop():
    for made, _ in [(torch.ones(2), 0)]:
        meet(made)
def unnamed():
    meet(torch.ones(2))
class Holder:
    def __init__(self):
        self.mask = torch.ones(2)
    def use(self):
        raise Apart(self.mask)
"""


class Apart(RuntimeError):
    """What same_device.check raises, with a tensor."""

    def __init__(self, tensor):
        super().__init__("apart")
        self.tensors = (tensor,)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Return a reader's script, as a dict of its functions, and its path."""
    path = tmp_path_factory.mktemp("reader") / "train.py"
    path.write_text(SOURCE, "utf8")
    space = {"Apart": Apart}
    exec(compile(SOURCE, str(path), "exec"), space)
    return space, path


def made(act, **known):
    """Return what is said about the tensor of an error."""
    holders = SimpleNamespace(modules=known.get("modules", {}), places={})
    try:
        act()
    except Apart as error:
        (found,) = origins.of_tensors(error, holders)
    return found.name, Path(found.line).name


@pytest.mark.parametrize(
    ("function", "name", "line"),
    [
        ("once", "mask", "train.py:5"),
        ("twice", "mask", ""),  # either line may have made it
        ("loop", "mask", "train.py:13"),
        ("unnamed", "mask", ""),
    ],
)
def test_one_statement_has_to_bind_the_name(reader, function, name, line):
    """An argument is looked for in the function that gave it."""
    space, _ = reader
    assert made(space[function]) == (name, line)


def test_an_attribute_is_bound_somewhere_in_the_file(reader):
    """A mask that is no buffer stays behind when its module moves."""
    space, _ = reader
    assert made(space["Holder"]().use) == ("self.mask", "train.py:19")


def test_a_parameter_comes_from_the_line_that_made_its_module(reader):
    """The name is the layer's, as the error is deep in torch."""
    space, path = reader
    layer = torch.nn.Linear(2, 2)
    found = made(lambda: space["meet"](layer.weight), modules={layer: f"{path}:9"})
    assert found == ("Linear.weight", "train.py:9")
