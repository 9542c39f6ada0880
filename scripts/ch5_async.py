"""Chapter 5 - Asynchronous: a server takes gradients as they come, some stale.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch5_async.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tasks import load_digits


def deliveries(periods: list[int], num: int) -> list[tuple[int, int]]:
    """List the first num deliveries of gradients: (tick, worker's rank).

    Worker 1 needs periods[0] ticks for a gradient, worker 2 periods[1], ...
    """
    workers = enumerate(periods, 1)
    turns = [(p * n, w) for w, p in workers for n in range(1, num + 1)]
    return sorted(turns)[:num]


class Trainer:
    """Hold a replica and what it needs for a gradient and for a step."""

    def __init__(self, device: torch.device, lr: float):
        x, y = load_digits()
        self.x, self.y, self.lr = (x / 16).to(device), y.to(device), lr
        torch.manual_seed(0)  # all start equal
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        self.net = nn.Sequential(*layers).to(device, x.dtype)
        self.weights = parameters_to_vector(self.net.parameters()).detach()
        self.draw = torch.Generator().manual_seed(dist.get_rank())

    def loss(self, batch=...) -> torch.Tensor:
        """Return the loss on some samples, or on all, with current weights."""
        vector_to_parameters(self.weights, self.net.parameters())
        outputs = self.net(self.x[batch])
        return nn.functional.cross_entropy(outputs, self.y[batch])

    def gradient(self) -> torch.Tensor:
        """Return the gradient on a new batch of 32, as one vector."""
        batch = torch.randint(len(self.x), (32,), generator=self.draw)
        loss = self.loss(batch)
        grads = torch.autograd.grad(loss, [*self.net.parameters()])
        return parameters_to_vector(grads)


def train_sync(trainer, rank, periods: list[int], num: int) -> list[tuple]:
    """Wait for all workers in each step; use the mean of their gradients.

    Returns a log: (tick, gradients so far, staleness, loss) of each round.
    """
    log, workers = [], len(periods)
    for step in range(1, num // workers + 1):
        gradient = torch.zeros_like(trainer.weights)  # rank 0 only watches
        if rank > 0:
            gradient = trainer.gradient()
        dist.all_reduce(gradient)
        trainer.weights -= trainer.lr * gradient / workers
        if rank == 0:
            loss = trainer.loss().item()
            log.append((step * max(periods), step * workers, 0, loss))
    return log


def train_async(trainer, rank, periods: list[int], num: int) -> list[tuple]:
    """Keep the weights on rank 0; take a step with each gradient it gets."""
    log, seen = [], [0] * (len(periods) + 1)
    for done, (tick, worker) in enumerate(deliveries(periods, num)):
        if rank == worker:
            dist.send(trainer.gradient(), dst=0)
            dist.recv(trainer.weights, src=0)
        elif rank == 0:
            gradient = torch.empty_like(trainer.weights)
            dist.recv(gradient, src=worker)
            trainer.weights -= trainer.lr * gradient  # may be stale
            dist.send(trainer.weights, dst=worker)
            if (done + 1) % len(periods) == 0:
                loss, staleness = trainer.loss().item(), done - seen[worker]
                log.append((tick, done + 1, staleness, loss))
            seen[worker] = done + 1
    return log


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, lr=0.2)
    parser.add_argument("--gradients", type=int, default=240, help="of all")
    parser.add_argument("--slowest", type=int, default=4, help="in ticks")
    return parser.parse_args(argv)


def main() -> None:
    """Train both ways from the same start, with the same work."""
    with job.ranks(args := parse_args()) as (rank, world_size, device):
        periods = [1] * (world_size - 2) + [args.slowest]  # the last is slow
        if world_size < 2 or args.gradients < len(periods):
            why = f"{world_size} ranks, {args.gradients} gradients"
            job.refuse(f"{why}: rank 0 serves, each other needs one")
        for train in train_sync, train_async:
            trainer = Trainer(device, args.lr)
            log = train(trainer, rank, periods, args.gradients)
            loss = trainer.loss().detach()
            dist.broadcast(loss, 0)  # the server's, as others may be stale
            job.finite(loss, train.__name__)
            if rank == 0:
                ticks, num, _, loss = log[-1]
                found = f"{num} gradients, {ticks=}, {loss=:.3f}"
                job.say(f"{train.__name__}: {found}")


if __name__ == "__main__":
    main()
