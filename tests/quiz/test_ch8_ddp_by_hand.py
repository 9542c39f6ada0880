"""What backs the quizzes of chapter 8."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scripts import ch8_local_sgd
from tests.quiz.proofs import law


def test_ch8_order(two):
    """Calls meet in their order, whatever the tensors are for."""
    source = """
a, b = torch.ones(3), torch.full((3,), 10.0)
for x in (a, b) if rank == 0 else (b, a):
    dist.all_reduce(x)
a[0].item(), b[0].item()
"""
    assert two.run(source, quiet=True) == [(11, 11)] * 2


def test_ch8_unused(two):
    source = """
from torch import nn
from scripts.ch8_ddp_by_hand import DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.layer = map(nn.Parameter, torch.ones(2))
    def forward(self, used):
        return self.trunk + (6 * self.layer if used else 0)
model = DDP(Net())
model(rank == 0).backward()
model.module.layer.grad.item()
"""
    assert two.run(source, quiet=True) == [3, 3]


def test_ch8_unused_op(two):
    """Rank 1's graph is without the call; rank 0's, and what runs eagerly, have it."""
    source = """
from scripts.ch8_custom_op import all_gather
def forward(x):
    rows = all_gather(x)
    return rows.sum() if rank == 0 else x.sum()
eagerly = forward(torch.ones(3)).item()
torch._dynamo.reset()
graphs = []
from torch._dynamo.backends.common import aot_autograd
def note(graph, _):
    graphs.append(str(graph.graph))
    raise NotImplementedError("traced, but not to be run: rank 0 would wait")
try:
    torch.compile(forward, backend=aot_autograd(fw_compiler=note))(torch.ones(3))
except Exception as error:
    assert "not to be run" in str(error)
eagerly, "by_hand.all_gather" in graphs[0]
"""
    assert two.run(source, quiet=True) == [(6, True), (3, False)]


def alone(monkeypatch):
    """Let collectives of one process do nothing."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)


@law
def test_ch8_bytes_per_token(millions, tokens, every):
    """A model of as many numbers as the question's has millions."""
    net = nn.Linear(millions, 1, bias=False)
    outer = ch8_local_sgd.Outer(net, 0.7, 0.9)
    with pytest.MonkeyPatch.context() as patch:
        alone(patch)
        for step in range(2 * every):
            if (step + 1) % every == 0:
                outer.step()
    return 1e6 * outer.num_bytes / (2 * every * tokens)


@law
def test_ch8_replicated_loss(ranks):
    """All ranks in one process, whose loss is the sum of theirs."""
    xs = [torch.ones((), requires_grad=True) for _ in range(ranks)]
    losses = [sum(xs) for _ in range(ranks)]
    sum(losses).backward()
    return xs[0].grad.item()
