"""Chapter 8 - DDP from scratch: talk only now and then.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_local_sgd.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn

from tasks import GPT, loss_on, read_text


class Outer:
    """Let the ranks train alone, and bring them together now and then.

    How far they went on average is the gradient of a second optimizer. With
    lr 1 and no momentum it steps to the mean of their weights.
    """

    def __init__(self, net: nn.Module, lr: float, momentum: float) -> None:
        self.net, self.num_bytes = net, 0
        self.common = [p.detach().clone() for p in net.parameters()]
        how = {"momentum": momentum, "nesterov": momentum > 0}
        self.optimizer = torch.optim.SGD(self.common, lr, **how)

    @torch.no_grad()
    def step(self) -> None:
        """Take an outer step on all ranks, and go on from there."""
        for old, new in zip(self.common, self.net.parameters(), strict=True):
            old.grad = old - new
            dist.all_reduce(old.grad, dist.ReduceOp.AVG)
            self.num_bytes += old.nbytes
        self.optimizer.step()
        for old, new in zip(self.common, self.net.parameters(), strict=True):
            new.copy_(old)


def train(every: int, outer: tuple, args, rank: int, device) -> tuple:
    """Train a GPT; return its loss on the test text, and the bytes sent.

    every: so many steps, the ranks take an outer step; 0 means DDP instead.
    """
    text, test = read_text()
    torch.manual_seed(args.seed)
    net = GPT().to(device)
    model = net if every else nn.parallel.DistributedDataParallel(net)
    outer = Outer(net, *outer)
    inner = torch.optim.AdamW(net.parameters(), args.lr)
    torch.manual_seed(args.seed + rank)
    for step in range(1, args.steps + 1):
        inner.zero_grad()
        starts = torch.randint(len(text) - 64, (16,))  # (B,)
        loss_on(model, text, starts, device).backward()
        inner.step()
        if every and step % every == 0:
            outer.step()
    num_bytes = outer.num_bytes
    if not every:
        num_bytes = args.steps * sum(p.nbytes for p in net.parameters())
    return test_loss(net, test, device), num_bytes


def test_loss(net: nn.Module, text: torch.Tensor, device) -> float:
    """Return the loss on a text's first 128 windows, the same on all ranks."""
    with torch.no_grad():
        loss = loss_on(net, text, 64 * torch.arange(128), device)
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    return loss.item()


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, steps=120, seed=0, lr=3e-3, outer_lr=0.7)
    parser.add_argument("--every", type=int, default=20, help="of local steps")
    args = parser.parse_args(argv)
    if args.steps % args.every:
        job.refuse(f"--steps {args.steps}: must be a multiple of --every")
    return args


def main() -> None:
    """Train in five ways on the same windows of the text."""
    args = parse_args()
    ways = {
        "DDP": (0, (1, 0)),
        "local SGD": (args.every, (1, 0)),
        "DiLoCo": (args.every, (args.outer_lr, 0.9)),
        "at the end": (args.steps, (1, 0)),
        "never": (args.steps + 1, (1, 0)),
    }
    with job.ranks(args) as (rank, _, device):
        for name, (every, outer) in ways.items():
            loss, num_bytes = train(every, outer, args, rank, device)
            job.finite(torch.tensor(loss), name)
            if rank == 0:
                cost = num_bytes / (args.steps * 16 * 64)
                what = f"{cost:6.1f} bytes per token, test {loss=:.3f}"
                job.say(f"{name:10} {what}")


if __name__ == "__main__":
    main()
