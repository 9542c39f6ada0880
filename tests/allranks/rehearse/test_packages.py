"""A package that only runs on GPUs: the error that it causes says what to do."""

import runpy
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
    assert said(error).startswith("rehearsal: import flash_attn needs a real GPU")
    assert said(error).endswith("--stub flash_attn=FILE")
    assert said(ended(lambda: __import__("no_such_module"))) == ""


def test_a_package_that_fails_when_it_is_called_is_named(tmp_path, monkeypatch):
    """Triton can be installed without a GPU, and its kernels be launched."""
    triton = ModuleType("triton")
    exec("def jit(kernel): raise RuntimeError('0 active drivers')", vars(triton))
    monkeypatch.setitem(sys.modules, "triton", triton)  # gone after: torch asks for it
    script = Path(tmp_path, "script.py")
    script.write_text("import triton\n@triton.jit\ndef kernel(): pass\n")
    assert "rehearsal: triton.jit needs a real GPU" in said(
        ended(lambda: runpy.run_path(str(script)))
    )


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
