"""What DDP, FSDP2 and ZeRO by hand send and hold is what the sums say, to the byte."""

import pytest

from allranks import Ranks
from allranks.topics.sharding.sums import (
    FLOAT32,
    FSDP_MIXED,
    held,
    sent,
    walk,
    zero_redundancy_optimizer,
)

NUM_LAYERS, DIM = 4, 16
NUM_PARAMS = NUM_LAYERS * DIM * DIM
START = f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

NUM_LAYERS, DIM = {NUM_LAYERS}, {DIM}

class Count(TorchDispatchMode):
    # Collectives, and the bytes that a ring of their ranks sends from each.
    def __init__(self):
        super().__init__()
        self.calls = []
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "c10d":
            group = next(a for a in args if isinstance(a, torch.ScriptObject))
            size = dist.ProcessGroup.unbox(group).size()
            lists = [a if isinstance(a, list) else [a] for a in args[:2]]
            tensors = [t for l in lists for t in l if isinstance(t, torch.Tensor)]
            num = max(t.nbytes for t in tensors)
            num *= 2 if op._opname == "allreduce_" else 1
            self.calls.append((op._opname, num * (size - 1) / size))
        return op(*args, **(kwargs or {{}}))

def net():
    torch.manual_seed(rank)
    layers = [nn.Linear(DIM, DIM, bias=False) for _ in range(NUM_LAYERS)]
    return nn.Sequential(*layers)

def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

def step(model, optimizer, share=lambda: None):
    # The calls of the third step, and the bytes held before its update. In DDP's
    # second, rank 0 tells the others how it has put the buckets in order.
    for _ in range(3):
        with Count() as count:
            x = torch.randn(3, DIM, requires_grad=True)
            model(x).square().mean().backward()
            weights = [p for g in optimizer.param_groups for p in g["params"]]
            held = [sum(local(t).nbytes for t in ts) for ts in (
                weights, [p.grad for p in weights],
                [t for s in optimizer.state.values() for t in s.values() if t.dim()])]
            optimizer.step()
            share()
            optimizer.zero_grad()
    return count.calls, held

def ddp():
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-6)
    return step(model, torch.optim.Adam(model.parameters()))

def redundancy():
    model = nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=1e-6)
    kind = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
    return step(model, kind)

def hand(stage):
    # ZeRO-1 or ZeRO-2: each rank updates a part of each layer's weights.
    model, grads = net(), {{}}
    layers = [layer.weight for layer in model]
    parts = [nn.Parameter(p.detach().flatten().chunk(world_size)[rank]) for p in layers]
    def reduce(p, part):
        part.grad = torch.empty_like(part)
        dist.reduce_scatter_single(part.grad, p.grad.flatten(), dist.ReduceOp.AVG)
        p.grad = None
    for p, part in zip(layers, parts, strict=True):
        if stage == 2:
            p.register_post_accumulate_grad_hook(lambda p, part=part: reduce(p, part))
    def share():
        for p, part in zip(layers, parts, strict=True):
            dist.all_gather_single(p.data.view(-1), part.detach())
    optimizer = torch.optim.Adam(parts)
    def before(*_):
        grads["whole"] = sum(p.grad.nbytes for p in layers if p.grad is not None)
        for p, part in zip(layers, parts, strict=True):
            if stage == 1:
                reduce(p, part)
    for _ in range(2):
        with Count() as count:
            model(torch.randn(3, DIM)).square().mean().backward()
            before()
            optimizer.step()
            share()
            parted = sum(p.grad.nbytes for p in parts)
            optimizer.zero_grad()
    states = [t for s in optimizer.state.values() for t in s.values() if t.dim()]
    whole = sum(p.nbytes for p in layers)
    held = [whole, grads["whole"] or parted, sum(t.nbytes for t in states)]
    return count.calls, held

def fsdp(reshard=True, mixed=False, replicas=1):
    how = {{"reshard_after_forward": reshard}}
    if mixed:
        how["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    if replicas > 1:
        shape = replicas, world_size // replicas
        how["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "shard"))
    model, seen = net(), []
    layers = list(model)
    for layer in (*layers, model):
        fully_shard(layer, **how)
    for layer, after in zip(layers, layers[1:]):
        layer.set_modules_to_forward_prefetch([after])
    def look(name, number):
        there = [layer._get_fsdp_state()._fsdp_param_group for layer in layers]
        letters = ["a" if group._all_gather_result is not None
                   else "w" if group._sharded_state.name == "UNSHARDED" else "p"
                   for group in there]
        seen.append((name, number, "".join(letters)))
    for number, layer in enumerate(layers):
        # FSDP's own hooks stand before these: its weights are there already.
        layer.register_forward_pre_hook(
            lambda *_, number=number: look("forward", number))
        layer.register_full_backward_hook(
            lambda *_, number=number: look("backward", number))
    found = step(model, torch.optim.Adam(model.parameters()))
    return *found, seen[-2 * NUM_LAYERS:]
"""


@pytest.fixture(scope="module", params=[2, 4], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have all of them."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


def counted(ranks, work: str) -> list:
    """Return what each rank counted; all have to agree."""
    first, *others = ranks.run(work, quiet=True)
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ddp_and_the_first_stages_send_and_hold_what_the_sums_say(ranks, stage):
    """DDP is torch's; the stages are a few lines of collectives."""
    calls, kinds = counted(ranks, f"hand({stage})" if stage else "ddp()")
    size = ranks.world_size
    assert sum(num for _, num in calls) == sent(stage, NUM_PARAMS, size).inside
    assert tuple(kinds) == held(stage, NUM_PARAMS, size)


def test_torchs_zero_1_sends_as_much_as_zero_3(ranks):
    """It adds up all gradients everywhere, and then broadcasts the weights."""
    calls, kinds = counted(ranks, "redundancy()")
    size = ranks.world_size
    total = sum(num for _, num in calls)
    law = zero_redundancy_optimizer().total * NUM_PARAMS * (size - 1) / size
    assert total == law == sent(3, NUM_PARAMS, size).inside
    assert tuple(kinds)[:2] == held(1, NUM_PARAMS, size)[:2]


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_sends_and_holds_what_the_sums_say(ranks, reshard):
    """With its layers gathered twice, or once."""
    calls, kinds, _ = counted(ranks, f"fsdp({reshard})")
    size = ranks.world_size
    total = sum(num for _, num in calls)
    assert total == sent(3, NUM_PARAMS, size, reshard=reshard).inside
    assert tuple(kinds) == held(3, NUM_PARAMS, size)


def test_fsdp_in_mixed_precision_keeps_four_bytes_and_sends_two(ranks):
    """So it sends half of what it sends in float32."""
    calls, kinds, _ = counted(ranks, "fsdp(mixed=True)")
    size, given = ranks.world_size, {"precision": FSDP_MIXED}
    total = sum(num for _, num in calls)
    assert total == sent(3, NUM_PARAMS, size, **given).inside
    assert total * 2 == sent(3, NUM_PARAMS, size).inside
    assert tuple(kinds) == held(3, NUM_PARAMS, size, **given)


@pytest.mark.parametrize("reshard", [True, False])
def test_a_hybrid_adds_up_inside_and_then_across(ranks, reshard):
    """Two groups, each with all parts; with two ranks, each group is one rank."""
    calls, kinds, _ = counted(ranks, f"fsdp({reshard}, replicas=2)")
    shards = ranks.world_size // 2
    across = sum(num for name, num in calls if name == "allreduce_")
    inside = sum(num for _, num in calls) - across
    assert (inside, across) == sent(3, NUM_PARAMS, shards, 2, FLOAT32, reshard)
    assert tuple(kinds) == held(3, NUM_PARAMS, shards)


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_walks_as_the_figure_does(ranks, reshard):
    """Which layers are whole, and which arrive, in each moment that computes."""
    calls, _, seen = counted(ranks, f"fsdp({reshard})")
    moments = walk(3, NUM_LAYERS, reshard)
    model = [(m.name, m.layer, m.weights) for m in moments if m.layer >= 0]
    assert [tuple(one) for one in seen] == model
    # Of what a moment sends, FSDP2 sends gradients first.
    order = "".join(
        "r" * m.grads.count("r") + "a" * m.weights.count("a") for m in moments
    )
    letters = {"_allgather_base_": "a", "_reduce_scatter_base_": "r"}
    assert "".join(letters[name] for name, _ in calls) == order
