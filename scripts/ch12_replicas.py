"""Chapter 12 - Sharding: what each replica holds and sends, counted.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_replicas.py
"""

import job  # first, since importing torch takes seconds

import torch
from torch import nn

from meter import Meter, predict
from tasks import GPT, loss_on, read_text


class Alone:
    """Train a module with an optimizer, in one process."""

    stage = None

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        self.net = self.model = net
        self.optimizer = make_optimizer([*net.parameters()])

    def step(self) -> None:
        """Update the weights, and forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def whole(self, grads: bool) -> dict[str, torch.Tensor]:
        """Return all parameters by their names, or all gradients."""
        named = self.net.named_parameters()
        both = {name: p.grad if grads else p.detach() for name, p in named}
        return {name: t.clone() for name, t in both.items() if t is not None}


class Replicas(Alone):
    """Train with DDP: each rank holds everything."""

    stage = 0

    def __init__(self, net: nn.Module, units: list, make_optimizer) -> None:
        super().__init__(net, units, make_optimizer)
        how = {"gradient_as_bucket_view": True}  # else two copies
        self.model = nn.parallel.DistributedDataParallel(net, **how)


def layers(net: nn.Module) -> list[list[nn.Module]]:
    """Return a GPT's units, in the order in which forward needs them."""
    blocks = [[block] for block in net.blocks]
    return [[net.bytes, net.positions], *blocks, [net.norm, net.head]]


def train(make, args, dtype, rank: int, world_size: int, device) -> tuple:
    """Train a GPT; return weights, last gradients, and a Meter of a step."""
    share = slice(2 * rank, 2 * rank + 2)  # of the windows of a step
    if make.stage is None:  # one process sees all windows
        rank, share = 0, slice(None)
    torch.manual_seed(args.seed + rank)  # unequal weights, at first
    net, text = GPT(layers=args.layers).to(device, dtype), read_text()[0]
    way = make(net, layers(net), torch.optim.AdamW)
    dice, grads = torch.Generator().manual_seed(args.seed), {}

    def step() -> None:
        num = 2 * world_size
        starts = torch.randint(len(text) - 64, (num,), generator=dice)
        loss_on(way.model, text, starts[share], device).backward()
        way.step()

    def see(*_) -> None:
        grads.update(way.whole(grads=True))

    hook = way.optimizer.register_step_pre_hook(see)
    for _ in range(args.steps):
        step()
    weights = way.whole(grads=False)
    hook.remove()
    with Meter(net, way.optimizer) as meter:
        step()
    return weights, grads, meter


def off(ours: dict, theirs: dict) -> float:
    """Return the largest difference between tensors of the same names."""
    gaps = [(ours[name] - theirs[name]).abs().max() for name in theirs]
    return max(gaps).item()


def compare(ways: dict, args, *place) -> None:
    """Print each way's bytes, and how far it is from one process."""
    units = layers(GPT(layers=args.layers))
    units = [[p.numel() for m in ms for p in m.parameters()] for ms in units]
    dtypes = {"float64": torch.float64, "float32": torch.float32}
    alone = {d: train(Alone, args, dtypes[d], *place) for d in dtypes}
    lines = ["bytes per parameter, counted (predicted):"]
    for name, make in ways.items():
        gaps = []
        for dtype, (weights, grads, _) in alone.items():
            mine, my_grads, meter = train(make, args, dtypes[dtype], *place)
            gap = f"weights {off(mine, weights):.0e}"
            gap += f", gradients {off(my_grads, grads):.0e}"
            gaps.append(f"{name:7} off in {dtype}: {gap}")
        num, counted = sum(map(sum, units)), meter.held | {"sent": meter.sent}
        told = predict(make.stage, units, place[1])
        both = [f"{k} {counted[k] / num:.3f} ({told[k]:.3f})" for k in told]
        lines += [f"{name:7} {', '.join(both)}", *gaps]
    for line in lines if place[0] == 0 else ():
        job.say(line)


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=3, layers=4, seed=0).parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare({"DDP": Replicas}, args, *place)
