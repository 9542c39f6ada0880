"""A package that only runs on GPUs: the error that it causes says what to do."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils import cpp_extension

from allranks.rehearse import packages, recorder


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


SCRIPT = """
import sys
from allranks.rehearse import packages, recorder
sys.meta_path.insert(0, packages.Refusing())
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
try:
    with recorder.failures():
        calls[sys.argv[1]]()
except NotImplementedError as error:
    print(error, *error.__notes__)
"""


@pytest.mark.parametrize("call", ["load", "load_inline", "with_cuda"])
def test_a_source_in_cuda_is_refused_before_it_is_compiled(call, tmp_path):
    """nvcc would take minutes, and a lock would stay if it were ended."""
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    words = [sys.executable, "-c", SCRIPT, call]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    said = done.stdout
    assert "is for CUDA, and nvcc is not started" in said, done.stderr
    assert (
        f"cpp_extension.{call.replace('with_cuda', 'load')} compiles for a real" in said
    )
    assert not list(tmp_path.rglob("lock"))


def test_a_part_of_a_stub_needs_a_stub_of_its_own(monkeypatch):
    """With --stub triton=FILE, the advice for triton.language is another one."""
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    error = ModuleNotFoundError("No module", name="triton.language")
    assert packages.advice(error).endswith("--stub triton.language=FILE")


def test_an_extension_for_gpus_is_named(monkeypatch, tmp_path):
    """One for the CPU that does not compile is the reader's own affair."""
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr(cpp_extension, "is_ninja_available", lambda: True)
    source = {"cuda_sources": "__global__ void f() {}", "cpp_sources": ""}
    options = {"build_directory": str(tmp_path), **source}
    error = ended(lambda: cpp_extension.load_inline("one", **options))
    assert "cpp_extension.load_inline compiles for a real GPU" in said(error)
    assert said(ended(lambda: torch.ones(1).view(2))) == ""
    assert packages.advice(RuntimeError("CUDA")) == ""
