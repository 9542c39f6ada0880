"""Chapter 8 - DDP from scratch: buckets that leave early.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_buckets.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from ch8_per_parameter import compare


class DDP(nn.Module):
    """Make a module a replica, and average its gradients during backward."""

    def __init__(self, module: nn.Module, cap_mb: float = 0.1) -> None:
        super().__init__()
        self.module, self.arrived, self.works = module, set(), []
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        self.buckets = [[]]
        for p in reversed(self.params):  # the last layer comes first
            if sum(q.nbytes for q in self.buckets[-1]) >= cap_mb * 2**20:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.ready)

    def forward(self, *args, **kwargs):
        """Run the module on this rank's batch."""
        return self.module(*args, **kwargs)

    def ready(self, param: nn.Parameter) -> None:
        """Send the buckets that this gradient completes, in their order."""
        if not self.arrived:  # finish() will run when this backward ends
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.finish)
        self.arrived.add(param)
        for bucket in self.buckets[len(self.works) :]:
            if not self.arrived.issuperset(bucket):
                break
            flat = torch.cat([p.grad.flatten() for p in bucket])
            flat /= dist.get_world_size()
            self.works.append((dist.all_reduce(flat, async_op=True), flat))

    def finish(self) -> None:
        """Wait for the sums; they are means already. Copy them into .grad."""
        for (work, flat), bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            parts = flat.split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad.copy_(part.view_as(p))
        self.arrived, self.works = set(), []


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=20).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(DDP, args, *place)
