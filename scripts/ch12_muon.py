"""Chapter 12 - Sharding: Muon on many ranks, with matrices whole or cut.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_muon.py
"""

import job  # first, since importing torch takes seconds

import warnings
from collections import defaultdict

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from ch12_fsdp import whole
from ch12_replicas import off
from meter import Meter
from optim import Muon
from tasks import GPT, loss_on, read_text


class Dealt(Muon):
    """Deal the matrices out: each rank updates some whole matrices."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Average gradients, update this rank's matrices, and send them."""
        rank, world_size = dist.get_rank(), dist.get_world_size()
        alike = defaultdict(list)
        for p in self.param_groups[0]["params"]:
            alike[p.shape].append(p)
        for params in alike.values():
            rest = [torch.zeros_like(params[0])] * (-len(params) % world_size)
            grads = torch.stack([*(p.grad for p in params), *rest])
            weights = torch.stack([*params, *rest])  # (W * k, m, n)
            mine = weights.chunk(world_size)[rank]  # (k, m, n)
            mean = torch.empty_like(mine)
            dist.reduce_scatter_single(mean, grads, dist.ReduceOp.AVG)
            self.update(params[0], mine, mean)
            dist.all_gather_single(weights, mine)
            for p, new in zip(params, weights, strict=False):
                p.copy_(new)


class Cut(Muon):
    """Update this rank's rows as if they were the whole matrix: wrong."""

    def update(self, key, weights, grads) -> None:
        """Pass on this rank's rows; no error says that rows are missing."""
        super().update(key, weights.to_local(), grads.to_local())


def matrices(net: GPT) -> list[torch.nn.Parameter]:
    """Return what Muon updates; AdamW updates the rest."""
    return [p for p in net.blocks.parameters() if p.dim() == 2]


def train(make, ignored, args, steps: int, rank, world_size: int, device):
    """Train a GPT; return its weights, and a Meter of Muon's steps.

    ignored: returns the parameters that FSDP2 is to leave whole.
    rank: whose windows; slice(None) if one process sees those of all.
    """
    torch.manual_seed(args.seed)
    net, text = GPT(layers=args.layers).double().to(device), read_text()[0]
    fully_shard(net, ignored_params={*ignored(net)})
    muon, own = make(matrices(net)), {*matrices(net)}
    adamw = torch.optim.AdamW([p for p in net.parameters() if p not in own])
    meter = Meter(net, muon)
    dice = torch.Generator().manual_seed(args.seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - 64, (world_size, 4), generator=dice)
        loss_on(net, text, starts[rank].flatten(), device).backward()
        with meter:
            muon.step()
        adamw.step()
        net.zero_grad()
    return whole(net.named_parameters()), meter


def length(ours: dict, theirs: dict, names: list[str]) -> float:
    """Return the distance between two sets of tensors."""
    return sum((ours[n] - theirs[n]).square().sum() for n in names) ** 0.5


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=3, layers=2, seed=0).parse_args(argv)


def main(args, rank: int, world_size: int, device: torch.device) -> None:
    """Train in each way; compare the steps with those of one process."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    place, alone = (world_size, device), (Muon, GPT.parameters, args)
    every = slice(None), *place
    zero, one = (train(*alone, n, *every)[0] for n in (0, args.steps))
    names = [n for n in zero if "blocks" in n and zero[n].dim() == 2]
    size, path = sum(zero[n].numel() for n in names), length(one, zero, names)
    ways = {"dealt out": (Dealt, matrices), "cut": (Cut, lambda net: [])}
    for label, way in ways.items():
        ours, meter = train(*way, args, args.steps, rank, *place)
        gap = f"{off(ours, one):.0e} off: steps"
        gap += f" {length(ours, zero, names) / path:.2f} times as long,"
        gap += f" {length(ours, one, names) / path:.0%} off course"
        held = f"momentum {meter.held['states'] / size:.2f}"
        held += f", sent {meter.sent / args.steps / size:.2f} bytes per number"
        if rank == 0:
            job.say(f"{label:9} weights {gap}; {held}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
