"""Chapter 12 - Sharding: Muon, an optimizer that needs whole matrices.

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
from ch12_replicas import layers, off
from meter import Meter
from tasks import GPT, loss_on, read_text


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest orthogonal matrices to x (K, m, n), roughly.

    Five steps of Newton-Schulz put each singular value between 0.7 and 1.2.
    """
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.775 * gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Replace momentum with an orthogonal matrix, and step along it."""

    def __init__(self, params: list, lr=0.02, momentum=0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Update each matrix."""
        for p in self.param_groups[0]["params"]:
            self.update(p, p[None], p.grad[None])

    def update(self, key, weights: torch.Tensor, grads: torch.Tensor) -> None:
        """Update weights (K, m, n); their momentum is stored under a key."""
        how, state = self.param_groups[0], self.state[key]
        if not state:
            state["momentum"] = torch.zeros_like(grads)
        state["momentum"].lerp_(grads, 1 - how["momentum"])
        ahead = grads.lerp(state["momentum"], how["momentum"])  # Nesterov
        size = max(1, weights.shape[-2] / weights.shape[-1]) ** 0.5
        weights -= how["lr"] * size * orthogonal(ahead)


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


def train(make, args, steps: int, rank: int, world_size: int, device):
    """Train a GPT; return its weights, and a Meter of the last Muon step.

    Muon itself plays one process, which sees all windows.
    """
    torch.manual_seed(args.seed)
    net, text = GPT(layers=args.layers).double().to(device), read_text()[0]
    for modules in [*layers(net), net] if make is Cut else ():
        fully_shard(modules)
    matrices = [p for p in net.blocks.parameters() if p.dim() == 2]
    rest = [p for p in net.parameters() if not any(p is m for m in matrices)]
    optimizers = make(matrices), torch.optim.AdamW(rest)
    dice = torch.Generator().manual_seed(args.seed)
    meter, shape = Meter(net, optimizers[0]), (world_size, 4)  # windows
    for _ in range(steps):
        starts = torch.randint(len(text) - 64, shape, generator=dice)
        mine = starts.flatten() if make is Muon else starts[rank]
        loss_on(net, text, mine, device).backward()
        for p in rest if make is Dealt else ():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        with meter:
            optimizers[0].step()
        optimizers[1].step()
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
    place = rank, world_size, device
    zero, one = (train(Muon, args, n, *place)[0] for n in (0, args.steps))
    names = [n for n in zero if "blocks" in n and zero[n].dim() == 2]
    size = sum(zero[n].numel() for n in names)
    for label, make in {"dealt out": Dealt, "cut": Cut}.items():
        ours, meter = train(make, args, args.steps, *place)
        moved, path = (length(w, zero, names) for w in (ours, one))
        gap = f"{off(ours, one):.0e} off: steps {moved / path:.2f} times"
        gap += f" as long, {length(ours, one, names) / path:.0%} off course"
        held = f"momentum {meter.held['states'] / size:.2f}"
        held += f", sent {meter.sent / args.steps / size:.2f} bytes per number"
        if rank == 0:
            job.say(f"{label:9} weights {gap}; {held}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
