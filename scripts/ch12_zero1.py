"""Chapter 12 - Sharding: ZeRO 1, each rank updates a part of the weights.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_zero1.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from ch12_replicas import Alone, compare, parse_args


class Unit:
    """Parameters in one flat tensor, of which each rank owns 1/W.

    full   (W * n,)  all numbers, padded; the parameters are views of it
    shard  (n,)      this rank's part, which its optimizer updates
    """

    def __init__(self, modules: list, params: dict[str, nn.Parameter]) -> None:
        self.modules, self.params = modules, params
        self.sizes = [p.numel() for p in params.values()]
        world_size, first = dist.get_world_size(), next(iter(params.values()))
        self.pad = first.new_zeros(-sum(self.sizes) % world_size)
        self.full = self.flat(params.values())
        dist.broadcast(self.full, 0)
        mine = self.full.chunk(world_size)[dist.get_rank()]
        self.shard = nn.Parameter(mine, requires_grad=first.requires_grad)
        for name, part in self.parts(self.full).items():
            params[name].data = part

    def flat(self, tensors) -> torch.Tensor:
        """Return all numbers in one row, and the padding."""
        return torch.cat([*(t.detach().flatten() for t in tensors), self.pad])

    def parts(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each parameter's part of a flat tensor, in its shape."""
        parts = flat[: sum(self.sizes)].split(self.sizes)
        pairs = zip(self.params.items(), parts, strict=True)
        return {name: part.view(p.shape) for (name, p), part in pairs}

    def check(self, names) -> None:
        """Raise an error if any parameter has no gradient."""
        for name in names:
            raise RuntimeError(f"{name} has no gradient: all need one here")

    def reduce(self) -> None:
        """Give each rank its part of the mean gradients; free the rest."""
        flat = self.flat(p.grad for p in self.params.values())  # (W * n,)
        for p in self.params.values():
            p.grad = None
        mean = torch.empty_like(self.shard.detach())  # (n,)
        dist.reduce_scatter_single(mean, flat, dist.ReduceOp.AVG)
        if self.shard.grad is not None:  # from earlier micro-batches
            mean += self.shard.grad
        self.shard.grad = mean

    def gather(self) -> None:
        """Fill the parameters with the parts of all ranks."""
        dist.all_gather_single(self.full, self.shard.detach())


class Zero1(Alone):
    """Shard the optimizer: each rank updates its part of each unit."""

    stage = 1

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        self.net = self.model = net
        self.units, self.frozen = [], []  # frozen: no gradients, no updates
        for modules in units:
            inside = {p for module in modules for p in module.parameters()}
            named = [(n, p) for n, p in net.named_parameters() if p in inside]
            trains = {n: p for n, p in named if p.requires_grad}
            frozen = {n: p for n, p in named if not p.requires_grad}
            self.units += [Unit(modules, trains)] if trains else []
            self.frozen += [Unit(modules, frozen)] if frozen else []
        for name, _ in net.named_parameters():
            num = sum(name in u.params for u in self.units + self.frozen)
            if num != 1:  # in two units, or in none
                raise ValueError(f"{name} is in {num} units, not in 1")
        for buffer in net.buffers():
            dist.broadcast(buffer, 0)
        self.optimizer = make_optimizer([unit.shard for unit in self.units])

    def average(self) -> None:
        """Give each rank its parts of the mean gradients."""
        for unit in self.units:
            unit.check(n for n, p in unit.params.items() if p.grad is None)
            unit.reduce()

    def step(self) -> None:
        """Average gradients, update this rank's parts, gather weights."""
        self.average()
        super().step()
        self.share()

    def share(self) -> None:
        """Make each unit whole again."""
        for unit in self.units:
            unit.gather()

    def whole(self, grads: bool) -> dict[str, torch.Tensor]:
        """Gather all parameters by their names, or all gradients."""
        found = {}
        for unit in self.units if grads else self.units + self.frozen:
            mine = unit.shard.grad if grads else unit.shard.detach()  # (n,)
            full = mine.new_empty(dist.get_world_size() * len(mine))
            dist.all_gather_single(full, mine)
            found |= unit.parts(full)
        return found


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare({"ZeRO-1": Zero1}, args, *place)
