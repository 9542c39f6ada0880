"""The ten lines of FSDP that chapter 6 shows train what one process trains."""

import re

import pytest
import torch
from torch import distributed as dist
from torch import nn

from allranks import Ranks
from allranks.base.paths import ROOT

PAGE = ROOT / "book" / "ch6_model_parallel.md"
BLOCK = r"```python\n(from torch\.distributed\.fsdp import.*?)```"


class Blocks(nn.Module):
    """Two blocks and a head, as the page's lines expect a model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        """Map (B, 6) to (B, 3)."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def samples():
    """Return inputs and targets of eight samples."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, n, generator=generator).double() for n in (6, 3))
    return x, y


def train(code, make, samples):
    """Run the page's lines on this rank's share; return weights and gradients."""
    model = make()
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in samples())
    names = {"torch": torch, "model": model, "x": x, "y": y}
    exec(code, names | {"loss_fn": nn.functional.mse_loss})
    named = dict(model.named_parameters())
    return {n: (p.full_tensor(), p.grad.full_tensor()) for n, p in named.items()}


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_pages_lines_train_what_one_process_trains(world_size):
    """Each gradient, and each weight after the step, is that of one process."""
    (code,) = re.findall(BLOCK, PAGE.read_text("utf8"), re.DOTALL)
    assert "optimizer.step()" in code
    alone, (x, y) = Blocks(), samples()
    optimizer = torch.optim.Adam(alone.parameters())
    nn.functional.mse_loss(alone(x), y).backward()
    optimizer.step()
    with Ranks(world_size) as ranks:
        found = ranks.run(train, code, Blocks, samples)
    for theirs in found:
        assert theirs.keys() == dict(alone.named_parameters()).keys()
        for name, p in alone.named_parameters():
            weight, gradient = theirs[name]
            torch.testing.assert_close(gradient, p.grad, rtol=0, atol=1e-12)
            torch.testing.assert_close(weight, p.data, rtol=0, atol=1e-9)
