"""Outer steps: their arithmetic, their bytes, and what they do to a loss."""

import re

import pytest

from allranks import Ranks
from scripts import ch8_local_sgd
from tests import shown

SOURCE = """
from torch import nn
from scripts.ch8_local_sgd import Outer

torch.manual_seed(0)
net = nn.Linear(3, 2).double()
start = [p.detach().clone() for p in net.parameters()]
outer = Outer(net, *how)
moved = []
for again in range(2):
    old = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p += rank + 1 + again
    outer.step()
    moved.append([(p - o).mean().item() for p, o in zip(net.parameters(), old)])
moved, outer.num_bytes
"""


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_with_rate_1_and_no_momentum_it_averages_weights(world_size):
    """Rank r goes r + 1 away, then r + 2; all end at the mean of these."""
    mean = (world_size + 1) / 2
    with Ranks(world_size) as ranks:
        ranks.push({"how": (1, 0)})
        for moved, num_bytes in ranks.run(SOURCE, quiet=True):
            assert moved == [
                pytest.approx([mean, mean]),
                pytest.approx([mean + 1, mean + 1]),
            ]
            assert num_bytes == 2 * 8 * (6 + 2)


def test_with_momentum_it_goes_further():
    """As Nesterov's formula says: a step is lr (g + m v), with v = m v + g."""
    lr, momentum, v, wanted = 0.7, 0.9, 0.0, []
    for g in (1.5, 2.5):
        v = momentum * v + g
        wanted.append(pytest.approx([lr * (g + momentum * v)] * 2))
    with Ranks(2) as ranks:
        ranks.push({"how": (lr, momentum)})
        for moved, _ in ranks.run(SOURCE, quiet=True):
            assert moved == wanted


def test_outer_steps_save_bytes_and_cost_some_loss():
    """Each way learns; those that talk 20 times less send 20 times less."""
    lines = shown.lines("ch8_local_sgd", 2)
    rows = [
        re.search(r"([\d.]+) bytes per token, test loss=([\d.]+)", x) for x in lines
    ]
    sent, losses = zip(*(map(float, row.groups()) for row in rows), strict=True)
    assert sent[0] == 536.0 and sent[1] == sent[2] == 26.8 and sent[3] < 5
    assert sent[4] == 0 and len(lines) == 5
    assert losses[0] == min(losses) and max(losses) < 2.8


def test_steps_that_do_not_fit_are_refused():
    with pytest.raises(
        SystemExit, match=r"^--steps 50: must be a multiple of --every$"
    ):
        ch8_local_sgd.parse_args(["--steps=50"])
