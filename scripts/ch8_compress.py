"""Chapter 8 - DDP from scratch: send less than the gradients.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_compress.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import futures, nn

from tasks import make_task


class Hook:
    """Average a bucket over all ranks: DDP calls run() with each."""

    def __init__(self) -> None:
        self.kept, self.num_bytes = {}, 0  # what was left out; bytes sent

    def run(self, _, bucket: dist.GradBucket) -> futures.Future[torch.Tensor]:
        """Return a future that holds the mean, as DDP wants it."""
        done = futures.Future()
        done.set_result(self.mean(bucket.buffer(), bucket.parameters()))
        return done

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """Add up a tensor over all ranks, and count the bytes handed in."""
        self.num_bytes += x.nbytes
        dist.all_reduce(x)
        return x

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Return the mean of x over all ranks: here, in full."""
        return self.add_up(x / dist.get_world_size())


class Cast(Hook):
    """Send numbers of 16 bits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Divide first, because a sum might be too large for 16 bits."""
        return self.add_up((x / dist.get_world_size()).to(self.dtype)).to(x)


class TopK(Hook):
    """Send the largest numbers and their indices; keep the rest for later."""

    def __init__(self, share: float, feedback: bool) -> None:
        super().__init__()
        self.share, self.feedback = share, feedback

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Gather: ranks choose different indices, so nothing can be summed."""
        world_size, sizes = dist.get_world_size(), [p.numel() for p in params]
        kept = [self.kept.get(p, x.new_zeros(p.numel())) for p in params]
        x = x + torch.cat(kept)  # kept for each: DDP changes its buckets once
        index = x.abs().topk(max(1, int(self.share * len(x)))).indices
        bits = index.int().view(x.dtype)  # an index of 32 bits, as a float
        gathered = x.new_empty(2 * world_size, len(index))  # (2 W, k)
        dist.all_gather_single(gathered, torch.stack([bits, x[index]]))
        self.num_bytes += 8 * len(index)
        if self.feedback:
            rest = x.index_fill(0, index, 0).split(sizes)
            self.kept |= zip(params, rest, strict=True)
        index = gathered[::2].flatten().view(torch.int32)
        numbers = gathered[1::2].flatten() / world_size
        return torch.zeros_like(x).index_add_(0, index, numbers)


def train(hook: Hook, args, rank: int, device) -> list[tuple]:
    """Train a CNN on digits; return steps, bytes and loss on other digits."""
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(1440)
    ddp, curve = nn.parallel.DistributedDataParallel(net.to(device)), []
    ddp.register_comm_hook(None, hook.run)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    torch.manual_seed(args.seed + rank)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        x, y = (p.to(device) for p in train_set[torch.randint(1440, (32,))])
        nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if step % args.every == 0 or step == args.steps:
            x, y = (p.to(device) for p in test_set[:])
            loss = nn.functional.cross_entropy(net(x), y).detach()
            job.finite(loss, f"step {step}")
            curve.append((step, hook.num_bytes, loss.item()))
    return curve


def try_all(hooks: dict[str, Hook], args, rank: int, device) -> None:
    """Train with each hook; print what it sends, and what the loss is."""
    for name, hook in hooks.items():
        curve = train(hook, args, rank, device)
        if rank == 0:
            sent = hook.num_bytes / args.steps / 1000
            losses = " ".join(f"{loss:.3f}" for _, _, loss in curve)
            job.say(f"{name:12} {sent:6.1f} kB a step, test loss: {losses}")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=60, every=20, seed=0).parse_args(argv)


def main() -> None:
    """Train with all of the gradient, with 16 bits, and with the largest."""
    args = parse_args()
    hooks = {"all of it": Hook(), "fp16": Cast(torch.float16)}
    hooks |= {"bf16": Cast(torch.bfloat16), "top 1 %": TopK(0.01, True)}
    hooks["no feedback"] = TopK(0.01, False)
    with job.ranks(args) as (rank, _, device):
        try_all(hooks, args, rank, device)


if __name__ == "__main__":
    main()
