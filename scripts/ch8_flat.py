"""Chapter 8 - DDP from scratch: one message.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_flat.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from ch8_per_parameter import compare


class DDP(nn.Module):
    """Make a module a replica; average() keeps all replicas equal."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.params]
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *args, **kwargs):
        """Run the module on this rank's batch."""
        return self.module(*args, **kwargs)

    def average(self) -> None:
        """Replace all gradients by their means at once, after backward."""
        flat = torch.cat([p.grad.flatten() for p in self.params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(self.params, flat.split(self.sizes), strict=True):
            p.grad.copy_(part.view_as(p))


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=20).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(DDP, args, *place)
