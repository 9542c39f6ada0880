"""What backs the quizzes of chapter 10."""

import itertools

import pytest
import torch

from allranks import Ranks
from tests.quiz.proofs import law


@law
def test_ch10_moves(weight, ratio):
    exact = torch.tensor(float(weight))
    stored = exact.bfloat16()
    after = torch.nextafter(stored, torch.tensor(torch.inf).bfloat16())
    step = (after - stored) / ratio
    for count in itertools.count(1):
        exact += step.float()
        if exact.bfloat16() != stored:
            return count


def test_ch10_random(two):
    told = """
from scripts.ch10_precision import at_random

def drifted(seed):
    draw, weight = torch.Generator().manual_seed(seed), torch.ones(64)
    for _ in range(20):
        dist.all_reduce(step := torch.full((64,), 0.001 * rank), dist.ReduceOp.AVG)
        weight = at_random(weight - step, draw).float()
    low, high = weight.clone(), weight.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return not torch.equal(low, high)

drifted(rank), drifted(7)
"""
    assert two.run(told, quiet=True) == [(True, False)] * 2
    told = """
from scripts.ch10_precision import keep

def kept(way):
    stored, exact = torch.ones(64).bfloat16(), torch.ones(64)
    for _ in range(20):
        before = exact.clone()
        dist.all_reduce(step := torch.full((64,), 0.001 * rank), dist.ReduceOp.AVG)
        exact -= step
        keep(way, stored, before, exact, None)  # nothing to draw from
    low, high = stored.clone(), stored.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high) and not (stored == 1).any().item()

kept("bf16 + master"), kept("bf16 + Kahan")
"""
    assert two.run(told, quiet=True) == [(True, True)] * 2


def test_ch10_skip():
    told = """
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
before = net.module.weight.item()
x = torch.tensor([[float("inf") if rank == 2 else 1.0]])
scaler.scale(net(x).sum()).backward()
scaler.step(optimizer)
scaler.update()
net.module.weight.item() == before, scaler.get_scale()
"""
    with Ranks(4) as ranks:
        assert ranks.run(told, quiet=True) == [(True, 2.0)] * 4


def test_ch10_ones():
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    for _ in range(63):
        total += torch.ones((), dtype=torch.bfloat16)
    assert total.item() == 256
    assert torch.tensor(319.0).bfloat16().item() == 320  # one rounding, at the end


@law
def test_ch10_tokens(few, many, a, b):
    losses = torch.cat([torch.full((few,), float(a)), torch.full((many,), float(b))])
    return losses.double().mean().item()


@law
def test_ch10_norm(first, second):
    shards = torch.zeros(4, dtype=torch.double), torch.ones(9, dtype=torch.double)
    shards[0][1], shards[1][:] = first, second / 3
    assert shards[1].norm().item() == pytest.approx(second)
    return torch.cat(shards).norm().item()


@law
def test_ch10_noise(noise, signal, batch):
    from scripts.ch10_batch import noise_scale

    trace, length = noise_scale(signal + noise, signal + noise / 2, batch, 2)
    return trace / length
