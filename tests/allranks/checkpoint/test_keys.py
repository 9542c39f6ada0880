"""Keys lose what wrappers added, and the state dict is found in a checkpoint."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allranks.checkpoint.command import main
from allranks.checkpoint.keys import plain
from allranks.checkpoint.refusals import Refusal
from tests.allranks.checkpoint.files import WEIGHT, make_net, refusal


class Owner(nn.Module):
    """A model that has a submodule called module, and another one."""

    def __init__(self):
        super().__init__()
        self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 1)


class TestPlainKeys:
    """Keys lose what wrappers added, and nothing else."""

    names = st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1),
        min_size=1,
        max_size=3,
    ).map(".".join)

    @given(
        st.lists(names, min_size=1, max_size=5, unique=True),
        st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=4),
    )
    def test_any_nesting_of_wrappers_comes_off(self, names, wrappers):
        """Wrappers come off in any order, unless a name is a wrapper's own."""
        names = [n for n in names if "_orig_mod" not in n.split(".")] or ["w"]
        if all(n.startswith("module.") for n in names):
            names.append("w")
        wrapped = {"".join(wrappers) + name: i for i, name in enumerate(names)}
        before = list(wrapped)
        assert dict(plain(wrapped)) == {n: i for i, n in enumerate(names)}
        assert list(wrapped) == before, "the input was changed"

    @pytest.mark.parametrize("make", [make_net, Owner])
    @pytest.mark.parametrize(
        "wrap",
        [
            nn.DataParallel,
            torch.compile,
            lambda net: torch.compile(nn.DataParallel(net)),
            lambda net: nn.DataParallel(torch.compile(net)),
            lambda net: nn.DataParallel(nn.DataParallel(net)),
        ],
    )
    def test_of_real_wrappers(self, make, wrap):
        """Keys, values and version metadata are those of the model inside."""
        net = make()
        state = plain(wrap(net).state_dict())
        assert state._metadata == net.state_dict()._metadata
        assert list(state) == list(net.state_dict())
        make().load_state_dict(state)

    def test_of_a_compiled_part(self):
        """torch.compile of a part leaves its name in the middle of a key."""
        net = make_net()
        names = list(net.state_dict())
        net[0] = torch.compile(net[0])
        assert "0._orig_mod.weight" in net.state_dict()
        assert list(plain(net.state_dict())) == names

    def test_a_prefix_of_some_keys_stays(self):
        """An averaged model has a counter beside its module, so that prefix stays."""
        state = torch.optim.swa_utils.AveragedModel(make_net()).state_dict()
        assert list(plain(state)) == list(state)

    @pytest.mark.parametrize("most, left", [(0, 2), (1, 1), (9, 0)])
    def test_the_reader_may_know_better(self, most, left):
        """A model whose only child is called module looks like one in DDP."""
        state = {"module.module.weight": 0}
        assert list(plain(state, most)) == ["module." * left + "weight"]

    def test_a_tensor_called_module_stays(self):
        """A wrapper's prefix is followed by a name, which is missing here."""
        assert list(plain({"module": 0})) == ["module"]

    def test_names_that_would_collide_are_refused(self):
        """Two keys that would become one are refused, as one tensor would be lost."""
        with pytest.raises(Refusal, match="nothing but a wrapper"):
            plain({"a.weight": 0, "a._orig_mod.weight": 1})


@pytest.mark.parametrize(
    "state, flags, found",
    [
        ({"w": WEIGHT}, "", ["w"]),
        ({"model": {"w": WEIGHT}, "rng": WEIGHT}, "", ["w"]),
        ({"state_dict": {"w": WEIGHT}, "ema": {"e": WEIGHT}}, "", ["w"]),
        ({"net": {"w": WEIGHT}, "optim": {"state": {0: WEIGHT}}}, "", ["w"]),
        ({"a": {"w": WEIGHT}, "b": {"v": WEIGHT}}, "--entry b", ["v"]),
        ({"module.module.w": WEIGHT}, "--most 1", ["module.w"]),
        ({"a": {"w": WEIGHT}, "b": {"v": WEIGHT}}, "", "found a, b"),
        ({"a": {"w": WEIGHT}}, "--entry c", "found a"),
        ({"epoch": 3}, "", "found none"),
        ({0: WEIGHT}, "", "found none"),
        ([WEIGHT], "", "found none"),
        (WEIGHT, "", "found none"),
    ],
)
def test_finds_the_state_dict(state, flags, found, saved, tmp_path):
    """It has a usual name or is the only one; otherwise the tool lists the choices."""
    argv = ["convert", saved(state), tmp_path / "out.pt", *flags.split()]
    if isinstance(found, str):
        assert found in refusal(*argv)
        assert os.listdir(tmp_path) == ["in.pt"]
    else:
        main([str(word) for word in argv])
        assert list(torch.load(tmp_path / "out.pt")) == found
