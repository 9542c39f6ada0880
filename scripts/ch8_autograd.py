"""Chapter 8 - DDP from scratch: the backward of a collective.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_autograd.py
"""

import job  # first, since importing torch takes seconds

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.autograd import gradcheck


class AllReduce(torch.autograd.Function):
    """Every rank gets the sum: y_r = x_0 + x_1 + ..."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x.contiguous().clone())
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllReduce.apply(grad)  # x_s is in every y_r


class AllGather(torch.autograd.Function):
    """Every rank gets a row from each: (n,) becomes (W, n)."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        rows = x.new_empty(dist.get_world_size(), *x.shape)
        dist.all_gather(list(rows), x.contiguous())
        return rows

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return ReduceScatter.apply(grad)  # x_s is row s of every y_r


class ReduceScatter(torch.autograd.Function):
    """Rank r gets the sum of everybody's row r: (W, n) becomes (n,)."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        row = x.new_empty(x.shape[1:])  # contiguous, whatever x is
        dist.reduce_scatter(row, [*x.contiguous()])
        return row

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllGather.apply(grad)  # row r of any x_s is in y_r alone


class Broadcast(torch.autograd.Function):
    """Every rank gets the root's: y_r = x_root."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, root=0) -> torch.Tensor:
        ctx.root = root
        dist.broadcast(y := x.contiguous().clone(), root)
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple:
        total = AllReduce.apply(grad)  # x_root is in every y_r, and it alone
        return total * (dist.get_rank() == ctx.root), None


class AllToAll(torch.autograd.Function):
    """Row s of rank r becomes row r of rank s: y_s[r] = x_r[s]."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(y := x.new_empty(x.shape), x.contiguous())
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return AllToAll.apply(grad)  # each row's gradient goes home


class OneFunction(torch.autograd.Function):
    """See what all ranks call as one function of all inputs, (W, ...)."""

    @staticmethod
    def forward(ctx, inputs: torch.Tensor, call: Callable) -> torch.Tensor:
        ctx.x = inputs[dist.get_rank()].detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = call(ctx.x)
        return AllGather.forward(ctx, ctx.y.detach())

    @staticmethod
    def backward(ctx, grads: torch.Tensor) -> tuple:
        grad = grads[dist.get_rank()]
        (mine,) = torch.autograd.grad(ctx.y, ctx.x, grad, retain_graph=True)
        return AllGather.forward(ctx, mine), None


def passes(call: Callable, shape: tuple, device) -> bool:
    """Tell whether a call's backward is the derivative of its forward."""
    torch.manual_seed(0)  # equal on all ranks
    x = torch.randn(dist.get_world_size(), *shape, dtype=torch.double)
    inputs = x.to(device).requires_grad_(), call
    return gradcheck(OneFunction.apply, inputs, raise_exception=False)


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, numbers=3).parse_args(argv)


def main() -> None:
    """Check the backward of each collective across ranks."""
    args = parse_args()
    with job.ranks(args) as (rank, world_size, device):
        row, rows = (args.numbers,), (world_size, args.numbers)
        shapes = {AllReduce: row, AllGather: row, ReduceScatter: rows}
        shapes |= {Broadcast: row, AllToAll: rows}
        for function, shape in shapes.items():
            call, name = function.apply, function.__name__
            if not passes(lambda x, f=call: f(x.sin()), shape, device):
                job.refuse(f"{name} has a wrong backward: that is a bug")
            if rank == 0:
                job.say(f"{name}: its backward is its derivative")


if __name__ == "__main__":
    main()
