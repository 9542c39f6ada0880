"""Chapter 8 - DDP from scratch: a message per parameter.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_per_parameter.py
"""

import job  # first, since importing torch takes seconds

from collections.abc import Callable
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from tasks import make_task


class DDP(nn.Module):
    """Make a module a replica; average() keeps all replicas equal."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *args, **kwargs):
        """Run the module on this rank's batch."""
        return self.module(*args, **kwargs)

    def average(self) -> None:
        """Replace each gradient by its mean over the ranks, after backward."""
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


@contextmanager
def on_all_reduce(note: Callable):
    """Give note each tensor that dist.all_reduce is given meanwhile."""
    all_reduce = dist.all_reduce

    def noted(tensor: torch.Tensor, *args, **kwargs):
        note(tensor)
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = noted
    try:
        yield
    finally:
        dist.all_reduce = all_reduce


def train(wrap, args, rank: int, device) -> tuple:
    """Train a wrapped CNN on digits; return the CNN, a loss, and a step.

    The step is a list: g is a gradient that is ready, M a message that leaves.
    """
    torch.manual_seed(rank)  # other weights on each, until they are sent
    train_set, _, net = make_task(1440)
    step = []
    for p in net.parameters():  # g comes before what wrap's own hooks send
        p.register_post_accumulate_grad_hook(lambda _: step.append("g"))
    model = wrap(net.to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(args.steps):
        batch = train_set[torch.randint(1440, (32,))]
        x, y = (part.to(device) for part in batch)  # (B, 1, 8, 8), (B,)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        step.clear()
        with on_all_reduce(lambda _: step.append("M")):
            loss.backward()
            if hasattr(model, "average"):
                model.average()
        optimizer.step()
    return net, loss.detach(), step


def compare(ours, args, rank: int, world_size: int, device) -> None:
    """Train two networks, one in torch's DDP and one in ours; compare them."""
    theirs = train(nn.parallel.DistributedDataParallel, args, rank, device)[0]
    net, loss, step = train(ours, args, rank, device)
    pairs = zip(theirs.parameters(), net.parameters(), strict=True)
    gap = max((a - b).abs().max().item() for a, b in pairs)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    job.finite(loss, f"after {args.steps} steps")
    if rank == 0:
        job.say(f"one step: {' '.join(step)}; {loss=:.4f}")
        job.say(f"largest difference from torch's weights: {gap:g}")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=20).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(DDP, args, *place)
