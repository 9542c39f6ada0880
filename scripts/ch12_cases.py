"""Chapter 12 - Sharding: FSDP2 with nets that need care.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_cases.py
"""

import job  # first, since importing torch takes seconds

import copy
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from ch12_fsdp import whole
from ch12_replicas import off
from meter import Meter

DIM, WORDS = 9, 7  # odd sizes: two ranks can't divide them evenly


class Lora(nn.Module):
    """A large layer, `base`, and a small pair beside it: LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, 2)
        self.up, self.scale = nn.Linear(2, DIM), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, lean: bool) -> torch.Tensor:
        """Map (B, DIM) to the same shape; if lean, skip the small pair."""
        y = self.base(x).tanh()
        return x + self.scale * (y if lean else y + self.up(self.down(x)))


class Net(nn.Module):
    """An embedding, two layers, and a head that may be tied to it."""

    def __init__(self, tied: bool, frozen: bool) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, DIM), nn.Linear(DIM, WORDS)
        self.layers = nn.ModuleList(Lora() for _ in range(2))
        if tied:
            self.head.weight = self.words.weight
        for layer in self.layers if frozen else ():
            layer.base.requires_grad_(False)

    def forward(self, x: torch.Tensor, lean: bool) -> torch.Tensor:
        """Map words (B,) to logits (B, WORDS)."""
        x = self.words(x)
        for layer in self.layers:
            x = layer(x, lean)
        return self.head(x)


def shard(net: Net, case: str) -> None:
    """Shard the net with FSDP2, in the way that the case names."""
    scales = [layer.scale for layer in net.layers]
    ignored = {*scales} if "ignored" in case else None
    ends = [net.words, net.head]  # in one unit, or each in its own
    for modules in [*net.layers, *(ends if "two units" in case else [ends])]:
        fully_shard(modules, ignored_params=ignored)
    fully_shard(net, ignored_params=ignored)
    if "unused" in case:  # a rank sends zeros for what it didn't use
        net.set_reduce_scatter_unused_params(True)
    for p in scales if "averaged" in case else ():  # FSDP2 doesn't
        p.register_post_accumulate_grad_hook(
            lambda p: dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        )


def train(net: Net, steps: torch.Tensor, leans: list[bool]) -> Meter:
    """Train on words, steps (steps, parts, B); return what a step sends."""
    trains = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trains, 0.1, momentum=0.9)
    for parts in steps:
        with Meter(net, optimizer) as meter:
            for x, lean in zip(parts, leans, strict=True):
                y = net(x, lean)
                loss = nn.functional.cross_entropy(y, (x + 1) % WORDS)
                (loss / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return meter


def compare(case: str, args, rank: int, world_size: int, device) -> tuple:
    """Train; return how far off the weights are, and the bytes sent."""
    dice = torch.Generator().manual_seed(args.seed)
    steps = torch.randint(WORDS, (args.steps, world_size, 8), generator=dice)
    torch.manual_seed(args.seed)
    net = Net("tied" in case, "frozen" in case).to(device, torch.double)
    alone, steps = copy.deepcopy(net), steps.to(device)
    shard(net, case)
    leans = ["unused" in case] + [False] * (world_size - 1)  # of each rank
    train(alone, steps, leans)
    mine = slice(rank, rank + 1)
    meter = train(net, steps[:, mine], leans[mine])
    theirs = {n: p.detach() for n, p in alone.named_parameters()}
    ours = whole(net.named_parameters())
    return off(ours, theirs), meter.sent


CASES = "all trains", "base frozen", "tied, in one unit", "tied, in two units"
CASES += "scale ignored", "scale ignored, averaged", "LoRA unused on rank 0"


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=3, seed=0).parse_args(argv)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    with job.ranks(args := parse_args()) as place:
        for case in CASES:
            try:
                gap, sent = compare(case, args, *place)
                said = f"{gap:.0e} off, sends {sent:.0f} B"
            except ValueError as error:  # FSDP2 refuses it, on all ranks
                said = str(error)
            if place[0] == 0:
                job.say(f"{case:23} {said}")
