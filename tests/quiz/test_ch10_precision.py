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
