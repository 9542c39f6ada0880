"""What is said of the error that ends a script, and what is shown of its traceback."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

from allranks.rehearse import lines, recorder, records, script_errors
from tests.allranks.rehearse.running import SCRIPTS, sentences

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
        (found,) = script_errors.of_tensors(error, holders)
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


def ended(do) -> BaseException:
    """Return the error that ends a script, as a rehearsal prints it."""
    with pytest.raises(Exception) as caught, recorder.failures():
        do()
    return caught.value


def said(error: BaseException) -> str:
    """Return what a rehearsal has added."""
    return " ".join(getattr(error, "__notes__", []))


def test_a_missing_package_is_named_with_the_way_out():
    """Its import still fails as any other, since many scripts catch that."""
    error = ended(lambda: __import__("flash_attn.layers"))
    assert isinstance(error, ModuleNotFoundError)
    assert said(error).startswith("rehearsal: import flash_attn is made for GPUs")
    assert said(error).endswith("--stub flash_attn=FILE")
    assert said(ended(lambda: __import__("no_such_module"))) == ""


def test_a_package_that_fails_when_it_is_called_is_named(tmp_path, monkeypatch):
    """Triton can be installed without a GPU, and its kernels be launched."""
    triton = ModuleType("triton")
    exec("def jit(kernel): raise RuntimeError('0 active drivers')", vars(triton))
    monkeypatch.setitem(sys.modules, "triton", triton)  # gone after: torch asks for it
    script = Path(tmp_path, "script.py")
    script.write_text("import triton\n@triton.jit\ndef kernel(): pass\n")
    assert "rehearsal: triton.jit is made for GPUs" in said(
        ended(lambda: runpy.run_path(str(script)))
    )


COMPILING = """
from allranks.rehearse import recorder, script_errors
from allranks.rehearse.imports import when_imported
when_imported(script_errors.COMPILER, script_errors.refuse_cuda)
from torch.utils import cpp_extension
cpp_extension.is_ninja_available = lambda: True
cpp_extension.verify_ninja_availability = lambda: None
def started(*args, **kwargs):
    raise SystemExit("nvcc was started")
cpp_extension._write_ninja_file_and_build_library = started
calls = {
    "load": lambda: cpp_extension.load("k", ["k.cpp", "k.cu"]),
    "load_inline": lambda: cpp_extension.load_inline("k", "", "__global__ void f();"),
    "with_cuda": lambda: cpp_extension.load("k", ["k.cpp"], with_cuda=True),
}
for name, call in calls.items():
    try:
        with recorder.failures():
            call()
    except NotImplementedError as error:
        print(name, error, *error.__notes__)
"""


def test_a_source_in_cuda_is_refused_before_it_is_compiled(tmp_path):
    """nvcc would take minutes, and a lock would stay if it were ended."""
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    words = [sys.executable, "-c", COMPILING]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    said = done.stdout.splitlines()
    assert len(said) == 3, done.stderr
    for line, call in zip(said, ("load", "load_inline", "with_cuda"), strict=True):
        function = call.replace("with_cuda", "load")
        assert line.startswith(f"{call} ")
        assert "is for CUDA, and nvcc is not started" in line
        assert f"cpp_extension.{function} compiles for a real" in line
    assert not list(tmp_path.rglob("lock"))


def test_a_part_of_a_stub_needs_a_stub_of_its_own(monkeypatch):
    """With --stub triton=FILE, the advice for triton.language is another one."""
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    error = ModuleNotFoundError("No module", name="triton.language")
    assert script_errors.advice(error).endswith("--stub triton.language=FILE")


def test_an_extension_for_gpus_is_named(monkeypatch, tmp_path):
    """One for the CPU that does not compile is the reader's own affair."""
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(cpp_extension, "is_ninja_available", lambda: True)
    source = {"cuda_sources": "__global__ void f() {}", "cpp_sources": ""}
    options = {"build_directory": str(tmp_path), **source}
    error = ended(lambda: cpp_extension.load_inline("one", **options))
    assert "cpp_extension.load_inline compiles for a real GPU" in said(error)
    assert said(ended(lambda: torch.ones(1).view(2))) == ""
    assert script_errors.advice(RuntimeError("CUDA")) == ""


def test_a_tensor_that_the_laptop_cannot_hold_is_no_fault_of_the_gpu(rehearse):
    """torch's own error stays, and the way out stands beside it."""
    code, out, err = rehearse("--gpus=1", str(SCRIPTS / "large.py"))
    assert code == 1, out + err
    out = sentences(out)
    assert re.search(r"large\.py:\d+: RuntimeError: .*DefaultCPUAllocator", out), out
    assert (
        f"this machine's memory is full, not a GPU's: {script_errors.HOST_MEMORY_CURE}"
        in out
    )


OUR_FILE = f"{lines.HERE}rehearse/child.py"
TORCH_FILE = f"{lines.TORCHS}nn/modules/module.py"


def frames(*paths):
    """Return a traceback through some files."""
    told = [
        f'  File "{path}", line 7, in call\n    call()\n    ^^^^\n' for path in paths
    ]
    return f"Traceback (most recent call last):\n{''.join(told)}ValueError: no\n"


def test_frames_of_ours_are_left_out_and_a_packages_row_is_cut():
    """The reader looks for a line of the script, and what torch was asked there."""
    text = frames(
        "<frozen runpy>", OUR_FILE, "/me/train.py", *[TORCH_FILE] * 9, OUR_FILE
    )
    short = script_errors.shorten(text)
    assert lines.HERE not in short and "runpy" not in short
    assert '  File "/me/train.py", line 7, in call\n    call()\n' in short
    assert short.count(TORCH_FILE) == 2 and "    ... and 7 more of packages\n" in short
    assert short.endswith("ValueError: no\n")


def test_one_inside_of_an_errors_text_is_shortened_too():
    """mp.spawn's parent has its child's traceback in its own error."""
    inner = f"-- Process 1 terminated:\n{frames(OUR_FILE, '/me/train.py')}"
    assert lines.HERE not in script_errors.shorten(inner)
    assert script_errors.shorten("ValueError: no") == "ValueError: no"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Yield a function that sets the stage."""

    def setup(**changes):
        made = records.Stage(folder=str(tmp_path), gpus=2, **changes)
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("RANK", raising=False)
    return setup


def fail(text, here=True):
    """Return an error with a traceback, which has one of two places."""
    try:
        if here:
            raise ValueError(text)
        raise ValueError(text)
    except ValueError as error:
        return error


def test_equal_tracebacks_are_printed_once(stage, capsys, monkeypatch):
    """Ranks differ in numbers; what fails at another line is another failure."""
    stage()
    monkeypatch.setenv("RANK", "0")
    script_errors.tell(fail("rank 0 has 3"))
    monkeypatch.setenv("RANK", "1")
    script_errors.tell(fail("rank 1 has 4"))
    script_errors.tell(fail("rank 1 has 4", here=False))
    told = capsys.readouterr().err
    assert re.findall(r"^(.*)ValueError: (.*)", told, re.M) == [
        ("[rank0]: ", "rank 0 has 3"),
        ("[rank1]: ", "rank 1 has 4"),
    ]
    stage(full=True)
    script_errors.tell(fail("rank 1 has 4"))
    assert "rank 1 has 4" in capsys.readouterr().err
