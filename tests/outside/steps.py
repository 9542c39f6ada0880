"""Optimizers of nanochat and of this book, step by step on the same gradients.

In a copy of karpathy/nanochat, this file is among its tests. The variable SUBJECT
names the class that is compared with nanochat's; the bounds are those of its own
tests/test_optim.py. The first version of its Muon is in the copy as muon.py.
"""

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

NUM_STEPS = 5
BOUNDS = {"rtol": 1e-5, "atol": 1e-6}
MATRICES = [(8, 5)] * 3 + [(5, 8)] * 2 + [(6, 6)]  # no number of ranks deals them out
TABLES = [(64, 32), (48,), (128, 8)]
ASYNC = "all_reduce", "all_gather", "reduce_scatter"
ASYNC = *ASYNC, "all_gather_into_tensor", "reduce_scatter_tensor"
ADAMW = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def subject() -> Callable:
    """Return what SUBJECT names."""
    module, _, name = os.environ["SUBJECT"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def weights(shapes: list[tuple], dtype: torch.dtype) -> nn.ParameterList:
    """Return the same parameters on each rank, each time."""
    dice = torch.Generator().manual_seed(0)
    each = (torch.randn(shape, generator=dice) / 10 for shape in shapes)
    return nn.ParameterList(nn.Parameter(x.to(dtype)) for x in each)


def backward(params: nn.ParameterList, step: int, mean: bool) -> None:
    """Give parameters this rank's gradients of a step, or the mean of all ranks'."""
    dice = torch.Generator().manual_seed(100 * step + dist.get_rank())
    grads = [torch.randn(p.shape, generator=dice).to(p) for p in params]
    for grad in grads if mean else ():
        dist.all_reduce(grad, dist.ReduceOp.AVG)
    sum((p * grad).sum() for p, grad in zip(params, grads, strict=True)).backward()


def train(shapes: list, dtype: torch.dtype, make: Callable, mean: bool) -> Iterator:
    """Yield all parameters after each step, as one tensor."""
    params = weights(shapes, dtype)
    optimizer = make(params)
    for step in range(NUM_STEPS):
        for p in params:
            p.grad = None
        backward(params, step, mean)
        optimizer.step()
        yield torch.cat([p.detach().flatten() for p in params])


def compare(shapes: list, dtype: torch.dtype, theirs: Callable, ours: Callable) -> list:
    """Return the two ways' weights after each step: (theirs, ours)."""
    alone = subject().__module__.startswith("torch.")  # it averages no gradients
    both = (train(shapes, dtype, theirs, False), train(shapes, dtype, ours, alone))
    return [*zip(*both, strict=True)]


def ours(params: nn.ParameterList) -> torch.optim.Optimizer:
    """Return the Muon that is compared, with the numbers of nanochat's."""
    more = {"weight_decay": 0.0} if subject() is torch.optim.Muon else {}
    return subject()(params, lr=0.02, momentum=0.95, **more)


def first_muon() -> list:
    """Follow the Muon with which nanochat began."""
    import muon

    return compare(MATRICES, torch.double, muon.DistMuon, ours)


def newest(params: nn.ParameterList, decay: float = 0.0) -> torch.optim.Optimizer:
    """Return nanochat's newest optimizer on matrices, a group for each shape."""
    from nanochat.optim import MuonAdamW

    how = {"lr": 0.02, "momentum": 0.95, "ns_steps": 5, "beta2": 0.9}
    shapes = dict.fromkeys(p.shape for p in params)
    alike = [[p for p in params if p.shape == shape] for shape in shapes]
    each = ({"kind": "muon", "params": a, "weight_decay": decay, **how} for a in alike)
    return MuonAdamW([*each])


def newest_dealt() -> list:
    """Deal out matrices as we do, and update them by nanochat's newest rule."""
    from nanochat.optim import muon_step_fused

    class Theirs(subject()):
        def update(self, key, weights, grads):
            m, n = weights.shape[-2:]
            state = self.state[key]
            if not state:
                state["momentum"] = torch.zeros_like(grads)
                rows = (len(grads), m, 1) if m >= n else (len(grads), 1, n)
                state["second"] = grads.new_zeros(rows)
            lr = 0.02 * max(1.0, m / n) ** 0.5
            numbers = map(torch.tensor, (0.95, lr, 0.1, 0.9))
            both = state["momentum"], state["second"]
            axis = -1 if m >= n else -2
            muon_step_fused(grads, weights, *both, *numbers, 5, axis)

    theirs = partial(newest, decay=0.1)
    return compare(MATRICES, torch.float, theirs, Theirs)


def newest_rule() -> list:
    """Follow nanochat's newest rule with ours."""
    return compare(MATRICES, torch.float, newest, ours)


def adamw() -> list:
    """Follow nanochat's sharded AdamW."""
    from nanochat.optim import MuonAdamW

    def theirs(params):
        return MuonAdamW([{"kind": "adamw", "params": [*params], **ADAMW}])

    def parts(params):
        make = subject()
        if issubclass(make, torch.optim.Optimizer):
            return make(params, optimizer_class=torch.optim.AdamW, **ADAMW)
        return make(params, [[params]], lambda flat: torch.optim.AdamW(flat, **ADAMW))

    return compare(TABLES, torch.float, theirs, parts)


WAYS = {way.__name__: way for way in (first_muon, newest_dealt, newest_rule, adamw)}


def with_future(call: Callable) -> Callable:
    """Return a collective that gives a future, which gloo's do not: it waits."""

    def done(*args: object, async_op: bool = False, **kwargs: object) -> object:
        call(*args, **kwargs)
        future = torch.futures.Future()
        future.set_result(None)
        return SimpleNamespace(get_future=lambda: future) if async_op else None

    return done


def on_rank(rank: int, world_size: int, name: str, folder: str) -> None:
    """Run one comparison on a rank; leave what rank 0 found in a file."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=world_size)
    for call in ASYNC:
        setattr(dist, call, with_future(getattr(dist, call)))
    torch.Tensor.bfloat16 = torch.Tensor.clone  # Muon's cast: off, for all of them
    found = WAYS[name]()
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", WAYS)
def test_steps(name: str, world_size: int, record_property: Callable) -> None:
    """After each step, all weights are nanochat's."""
    with tempfile.TemporaryDirectory() as folder:
        args = world_size, name, folder
        torch.multiprocessing.spawn(on_rank, args, nprocs=world_size)
        found = torch.load(f"{folder}/found.pt")
    gaps = [(a - b).abs().max().item() for a, b in found]
    record_property("gap", f"{max(gaps):.0e}")
    assert len(gaps) == NUM_STEPS and found[0][0].std() > 0.05
    for theirs, ours in found:
        torch.testing.assert_close(ours, theirs, **BOUNDS)
