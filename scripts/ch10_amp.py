"""Chapter 10 - Scale a loss for fp16, and skip a step on all ranks or on none.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_amp.py
"""

import job  # first, since importing torch takes seconds

import itertools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tasks import read_digits


class Scaler:
    """Do what torch.amp.GradScaler does; if a rank overflows, none steps."""

    def __init__(self, scale: float, interval: int) -> None:
        self.value, self.interval = torch.tensor(scale), interval
        self.good, self.bad = 0, False

    def get_scale(self) -> float:
        return self.value.item()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.value

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients; step unless one of them is not finite."""
        params = [p for g in optimizer.param_groups for p in g["params"]]
        bad = torch.zeros((), device=params[0].device)
        for p in params:
            if p.grad is not None:
                p.grad.mul_(1 / self.value)
                bad += (~p.grad.isfinite()).any()
        dist.all_reduce(bad, dist.ReduceOp.MAX)  # all skip, or none does
        self.bad = bool(bad)
        if not self.bad:
            optimizer.step()

    def update(self) -> None:
        """Halve the scale after an overflow, double it after good steps."""
        self.good = 0 if self.bad else self.good + 1
        if self.bad:
            self.value = self.value / 2
        elif self.good == self.interval:  # 2^128 would be inf in float32
            self.value, self.good = (self.value * 2).clamp(max=2.0**127), 0


def train(args, device, ours: bool) -> tuple[list[float], nn.Module]:
    """Train in fp16 with our scaler or torch's; return its scales, the net."""
    torch.manual_seed(args.seed)
    net, x, y = digits(device)
    optimizer = torch.optim.Adam(net.parameters(), args.lr)
    start = {"init_scale": 2.0**args.power, "growth_interval": args.interval}
    scaler = torch.amp.GradScaler(device.type, **start)
    if ours:
        scaler = Scaler(*start.values())
    scales = []
    for step in range(1, args.steps + 1):
        with torch.autocast(device.type, torch.float16):
            loss = F.cross_entropy(net(x), y)
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        job.finite(mean, f"step {step}")  # no scale helps then
        if not scaler.get_scale():
            job.refuse(f"step {step}: the scale is 0: start with a lower --lr")
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        for p in net.parameters():  # what DDP does: inf + 1 is inf for all
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        scaler.step(optimizer)
        scaler.update()
    return scales, net


def digits(device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a small net, and this rank's share of the digits: N / W."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    x, y = read_digits(1797, device)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return net.to(device), x[mine], y[mine]


def survey(net: nn.Module, x, y, power: int) -> tuple[float, float]:
    """Return what becomes of the logits' gradient in fp16, if it is scaled.

    The share of its numbers that are 0, and its error as a whole.
    """
    logits, grads = net(x).detach(), []  # (N / W, 10)
    for dtype, scale in (torch.float64, 1), (torch.float16, 2.0**power):
        low = logits.to(dtype).requires_grad_()
        loss = F.cross_entropy(low.double(), y) * scale
        grads.append(torch.autograd.grad(loss, low)[0].double() / scale)
    exact, low = grads
    lost = ((low == 0) & (exact != 0)).double().mean()
    return lost.item(), ((low - exact).norm() / exact.norm()).item()


def parse_args(argv: list[str] | None = None):
    """Read the flags; the scale begins at 2 ** --power."""
    numbers = {"steps": 100, "power": 24, "interval": 20, "seed": 0}
    args = job.Flags(__doc__, **numbers, lr=0.01).parse_args(argv)
    if args.power > 100:
        job.refuse(f"--power {args.power}: must be 1 to 100")
    return args


def main(args, rank: int, world_size: int, device) -> None:
    """Show how scales move, what fp16 loses, and how ranks agree."""
    tell = job.say if rank == 0 else lambda _: None
    theirs, _ = train(args, device, ours=False)
    scales, net = train(args, device, ours=True)
    for step, (own, other) in enumerate(zip(scales, theirs, strict=True), 1):
        if own != other:
            why = f"step {step}: our scale is {own}, torch's {other}"
            job.refuse(f"{why}: that is a bug")
    runs = [(k, len([*same])) for k, same in itertools.groupby(scales)]
    steps = [f"2^{math.log2(k):.0f} x {num}" for k, num in runs]
    tell(f"scales: {', '.join(steps)}")
    for power in 0, 8, 16, 24, 32:
        zero, wrong = survey(net, *digits(device)[1:], power)
        tell(f"scaled by 2^{power}: {zero:.1%} became 0, error {wrong:.1e}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
