"""What backs the quizzes of chapter 12."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from allranks.topics.sharding.sums import seconds
from scripts.meter import Meter
from tests.quiz.proofs import hang, law


@contextmanager
def fake(world_size):
    """Be rank 0 of a group in which nothing is sent, and shapes are right."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield {"mesh": init_device_mesh("cpu", (world_size,))}
    finally:
        dist.destroy_process_group()


@law
def test_ch12_zero2_memory(billions, ranks):
    """Tensors without memory, of the sizes that a rank has."""
    num = billions * 10**9
    with torch.device("meta"):
        tensors = [torch.empty(num, dtype=torch.bfloat16)]  # weights
        tensors += [torch.empty(num // ranks, dtype=torch.bfloat16)]  # gradients
        tensors += [torch.empty(num // ranks)] * 3  # copies, and Adam's two
    return sum(tensor.nbytes for tensor in tensors) / 1e9


def test_ch12_units():
    """The parts and the whole are there while the first block runs."""
    net, seen = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(32))), []
    with fake(8) as cpus:
        fully_shard(net, **cpus)
        with Meter(net, torch.optim.SGD(net.parameters())) as meter:
            net[0].register_forward_hook(lambda *_: seen.append(meter.look()))
            net(torch.ones(1, 8))
    whole = 4 * 32 * 8 * 8
    assert [found["weights"] for found in seen] == [whole + whole / 8]


@law
def test_ch12_accumulate(parts):
    """The collectives of a step with two units, which are two for each."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with fake(2) as cpus:
        for module in [*net, net]:
            fully_shard(module, **cpus)
        with Meter(net, torch.optim.SGD(net.parameters())) as meter:
            for part in range(parts):
                net.set_requires_gradient_sync(part == parts - 1)
                net(torch.ones(1, 2)).sum().backward()
    assert meter.events.count("S") == 2
    return len(meter.events) / 2


@law
def test_ch12_hide(tflops, gb, ranks):
    """The fewest tokens with which ZeRO-3 waits for nothing, by halving."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        _, waits = seconds(3, 1e9, middle, tflops * 1e12, gb * 1e9, ranks)
        low, high = (middle, high) if waits > 0 else (low, middle)
    return high


def test_ch12_rank0(two):
    """Rank 1 goes on, and is not there when rank 0 gathers."""
    source = """
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict)
from torch.distributed.fsdp import fully_shard
net = fully_shard(nn.Linear(4, 4))
if rank == 0:
    options = StateDictOptions(full_state_dict=True)
    full = get_model_state_dict(net, options=options)
"""
    with hang(two, match="rank 1 finished"):
        two.run(source, timeout=60)
