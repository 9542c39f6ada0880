"""Chapter 8 - DDP from scratch: a product instead of a matrix.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_powersgd.py
"""

import job  # first, since importing torch takes seconds

import torch
import torch.distributed as dist

from ch8_compress import Hook, try_all


class PowerSGD(Hook):
    """Send a matrix as a product of two narrow ones, and keep what is left."""

    def __init__(self, rank: int, feedback: bool = True) -> None:
        super().__init__()
        self.rank, self.feedback, self.guess = rank, feedback, {}

    def factors(self, matrix: torch.Tensor, key: object) -> tuple:
        """Return p and q, so that p @ q.T is near the mean of all ranks'."""
        if key not in self.guess:  # the same on all ranks
            dice = torch.Generator().manual_seed(len(self.guess))
            q = torch.randn(matrix.shape[1], self.rank, generator=dice)
            self.guess[key] = q.to(matrix)
        p = torch.linalg.qr(self.add_up(matrix @ self.guess[key])).Q
        self.guess[key] = self.add_up(matrix.T @ p) / dist.get_world_size()
        return p, self.guess[key]

    def mean(self, x: torch.Tensor, params: list) -> torch.Tensor:
        """Compress the matrices; send all other gradients in full."""
        parts = (result := x.clone()).split([p.numel() for p in params])
        for param, part in zip(params, parts, strict=True):
            matrix = part.view(len(param), -1)  # (rows, columns)
            if param.dim() < 2:
                part.copy_(self.add_up(part / dist.get_world_size()))
                continue
            matrix += self.kept.get(param, 0)
            p, q = self.factors(matrix, param)
            if self.feedback:
                self.kept[param] = matrix - p @ q.T
            matrix.copy_(p @ q.T)
        return result


def converge(args, rank: int, device) -> None:
    """Compress a mean again and again; print how far the product is off."""
    torch.manual_seed(args.seed + rank)
    matrix = torch.randn(40, 4) @ torch.randn(4, 30) + torch.randn(40, 30)
    dist.all_reduce(mean := matrix.to(device) / dist.get_world_size())
    hook, size = PowerSGD(4), mean.norm()
    pairs = [hook.factors(matrix.to(device), "again") for _ in range(6)]
    errors = [f"{(mean - p @ q.T).norm() / size:.3f}" for p, q in pairs]
    best = torch.linalg.svdvals(mean)[4:].norm() / size
    if rank == 0:
        error = f"error of rank 4: {' '.join(errors)}"
        job.say(f"{error}; the least is {best:.3f}")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=60, every=20, seed=0).parse_args(argv)


def main() -> None:
    """Show how a guess converges; train with feedback, and without."""
    args = parse_args()
    hooks = {"all of it": Hook(), "rank 2": PowerSGD(2)}
    hooks["no feedback"] = PowerSGD(2, feedback=False)
    with job.ranks(args) as (rank, _, device):
        converge(args, rank, device)
        try_all(hooks, args, rank, device)


if __name__ == "__main__":
    main()
