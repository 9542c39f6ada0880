"""Chapter 10 - Autocast, FSDP2's policy, checkpointing: what has which dtype.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_autocast.py
"""

import job  # first, since importing torch takes seconds

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ch10_accumulate import in_a_row, off

LOW = torch.bfloat16
AGAIN = "", "checkpoint", "by hand"  # who computes the middle again


def dtypes(device, low: torch.dtype) -> dict[torch.dtype, list[str]]:
    """Return what operations give for float32, and for the low dtype."""
    x, ones = torch.rand(4, 8, 8, device=device), torch.ones(8, device=device)
    zeros = torch.zeros(4, 8, device=device, dtype=torch.long)
    ops = {
        "linear": nn.Linear(8, 8).to(device),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "softmax": lambda x: x.softmax(-1),
        "layer_norm": lambda x: F.layer_norm(x, (8,), ones, ones),
        "sum": torch.sum,
        "cross_entropy": lambda x: F.cross_entropy(x, zeros),
        "mse_loss": lambda x: F.mse_loss(x, x),
        "prod": torch.prod,
        "x + float32": lambda x: x + ones,
    }
    found = {}  # names by (dtype from float32, dtype from low)
    with torch.autocast(device.type, low):
        for name, op in ops.items():
            kinds = op(x).dtype, op(x.to(low)).dtype
            found.setdefault(kinds, []).append(name)
    return found


class Net(nn.Module):
    """A net that notes in which dtype its middle layer computes, each time."""

    def __init__(self, args, again: str) -> None:
        super().__init__()
        torch.manual_seed(args.seed)
        self.again, self.seen, wide = again, [], args.width
        self.first, self.middle = nn.Linear(16, wide), nn.Linear(wide, wide)
        self.places, self.last = nn.Embedding(1, wide), nn.Linear(wide, 4)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Return the middle layer's output."""
        self.seen.append(str((y := self.middle(x)).dtype))
        return y.tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the middle's activations, or compute them again in backward."""
        x = self.first(x) + self.places.weight  # bf16 + float32
        if self.again == "checkpoint":
            x = checkpoint(self.compute, x, use_reentrant=False)
        elif self.again == "by hand":
            x = Recompute.apply(self.compute, x, *self.middle.parameters())
        else:
            x = self.compute(x)
        return self.last(x)


class Recompute(torch.autograd.Function):
    """Checkpoint a function, and forget that autocast was on."""

    @staticmethod
    def forward(ctx, function, x, *weights):
        """Compute without a graph; keep the input only."""
        ctx.function, ctx.weights = function, weights
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, slope):
        """Compute again, with a graph, and go back through it."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():  # backward runs outside of autocast
            y = ctx.function(x)
        grads = torch.autograd.grad(y, (x, *ctx.weights), slope.to(y.dtype))
        return None, *grads


def train(args, device, again="", low=None, policy=None) -> tuple:
    """Return the averaged gradient, and the dtypes in the middle."""
    net = Net(args, again).to(device)
    if policy:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        fully_shard(net, mesh=mesh, mp_policy=policy)
    draw = torch.Generator().manual_seed(args.seed + dist.get_rank())
    x = torch.randn(args.samples, 16, generator=draw).to(device)  # (B, 16)
    with torch.autocast(device.type, low) if low else nullcontext():
        loss = net(x).float().square().mean()
    loss.backward()
    gradient = in_a_row(net)
    if not policy:  # FSDP2 has averaged it
        dist.all_reduce(gradient, dist.ReduceOp.AVG)
    return gradient, net.seen


def parse_args(argv: list[str] | None = None):
    """Read the flags; --samples are per rank."""
    return job.Flags(__doc__, samples=256, width=64, seed=0).parse_args(argv)


def main(args, rank: int, world_size: int, device) -> None:
    """Ask operations for their dtypes, then compare gradients with fp32's."""
    tell = job.say if rank == 0 else lambda _: None
    for kinds, names in dtypes(device, LOW).items():
        tell(f"{', '.join(names)}: {kinds[0]} and {kinds[1]}")
    exact, plain = (train(args, device, low=low)[0] for low in (None, LOW))
    tries = {f"autocast {a}".strip(): {"again": a, "low": LOW} for a in AGAIN}
    for name, reduce in ("float32", torch.float32), ("bf16", LOW):
        policy = MixedPrecisionPolicy(LOW, reduce)
        tries[f"FSDP2, reduced in {name}"] = {"policy": policy}
    for name, how in tries.items():
        gradient, seen = train(args, device, **how)
        tell(f"{name}: {' then '.join(seen)}, {off(gradient, exact):.2e} off")
        if how.get("again"):
            wrong = off(gradient, plain)
            tell(f"{name}: {wrong:.2e} off from plain autocast")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
