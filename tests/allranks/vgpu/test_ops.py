"""Every op that torch tests itself gives the CPU's results on a virtual GPU.

The list is torch's own (``op_db``, in the wheel): 702 entries with sample inputs.
"""

import sys
import types
import unittest
from functools import cache

import pytest
import torch
from torch.utils import _pytree as pytree

from allranks import vgpu
from allranks.vgpu.tensor import VirtualTensor

PARTS = 8  # one test each, so that a slow machine does not reach the timeout of a test
NUM_SAMPLES = 1  # of each entry; with three the verdict was the same
REFUSED = {"to_sparse"}
HOST = {"to"}  # their samples ask for the CPU by name


@cache
def database():
    """Return torch's list, with a stand-in for expecttest.

    Only torch's own tests need expecttest, but the import of the list asks for it.
    """
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    stand_in.assert_expected_inline = None
    before = sys.modules.setdefault("expecttest", stand_in)
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        if before is stand_in:
            del sys.modules["expecttest"]
    return op_db


def tensors(tree) -> list[torch.Tensor]:
    """Return the tensors in nested arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def bring(inputs, where: str):
    """Copy an op's arguments to a device, and ask for results there."""
    first, args, kwargs = pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.detach().clone().to(where).requires_grad_(t.requires_grad),
        inputs,
    )
    return first, args, kwargs | ({"device": where} if kwargs.get("device") else {})


def outcome(op, inputs):
    """Run an op and its backward; return results and gradients."""
    torch.manual_seed(0)
    first, args, kwargs = inputs
    outs = tensors(op(first, *args, **kwargs))
    ins = [t for t in tensors(inputs) if t.requires_grad]
    ends = [o for o in outs if o.requires_grad and (o.is_floating_point())]
    if not ins or not ends:
        return outs
    grads = [torch.full_like(end, 0.5) for end in ends]
    return outs + list(torch.autograd.grad(ends, ins, grads, allow_unused=True))


def compare(name, op, inputs) -> str | None:
    """Return how a virtual GPU differs from the CPU, or None."""
    try:
        truth = outcome(op, bring(inputs, "cpu"))
    except Exception:
        return None  # the CPU refuses this sample
    try:
        mine = outcome(op, bring(inputs, "vgpu:1"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for a, b in zip(mine, truth, strict=True):
        if a is None or b is None:
            if a is not b:
                return "a gradient is missing"
            continue
        if not isinstance(a, VirtualTensor) or a.get_device() != 1:
            return f"{a.device}"
        inner = a._inner
        if (a.shape, a.stride(), a.dtype) != (inner.shape, inner.stride(), inner.dtype):
            return "its own shape is not the shape of its memory"
        if (inner.shape, inner.dtype) != (b.shape, b.dtype):
            return f"{inner.shape} {inner.dtype}, not {b.shape} {b.dtype}"
        plain = b.layout == torch.strided and b.dtype in (torch.float64, torch.int64)
        if not plain or "empty" in name:
            continue
        if not torch.equal(inner.detach().nan_to_num(), b.detach().nan_to_num()):
            return "another value"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_of_torch_answers_on_the_device(part, monkeypatch):
    """Results and gradients have the CPU's shape and values, on the device."""
    wrong, num, ops = {}, 0, database()
    # Each op would search its callers for one of torch's tests, which takes most of the
    # time.
    for module in "common_utils", "opinfo.core":
        search = f"torch.testing._internal.{module}.extract_test_fn"
        monkeypatch.setattr(search, lambda: None)
    with vgpu.plugged_in(2, memory="4 GiB"):
        for info in ops[part::PARTS]:
            if torch.float64 not in info.dtypes:
                continue
            samples = info.sample_inputs(
                "cpu", torch.float64, requires_grad=info.supports_autograd
            )
            for _, sample in zip(range(NUM_SAMPLES), samples, strict=False):
                inputs = sample.input, sample.args, sample.kwargs
                if any(t.layout != torch.strided for t in tensors(inputs)):
                    continue
                num += 1
                found = compare(info.name, info.op, inputs)
                if found:
                    wrong[info.name] = found
    assert num > 550 / PARTS
    assert set(wrong) <= REFUSED | HOST, wrong
