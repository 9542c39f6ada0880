"""Chapter 8 - DDP from scratch: a collective as an operator of torch's.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_custom_op.py
"""

import job  # first, since importing torch takes seconds

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.library import custom_op, opcheck

from ch8_autograd import passes


def get_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a row from each rank: (n,) becomes (W, n)."""
    rows = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather(list(rows), x.contiguous())
    return rows


def get_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' row r, on rank r: (W, n) becomes (n,)."""
    row = x.new_empty(x.shape[1:])
    dist.reduce_scatter(row, [*x.contiguous()])
    return row


def total(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks."""
    dist.all_reduce(y := x.contiguous().clone())
    return y


all_gather = custom_op("by_hand::all_gather", get_rows, mutates_args=())
reduce_scatter = custom_op("by_hand::reduce_scatter", get_sum, mutates_args=())

# Shapes only, no messages: the compiler calls these while tracing.
all_gather.register_fake(lambda x: torch.stack([x] * dist.get_world_size()))
reduce_scatter.register_fake(lambda x: x.new_empty(x.shape[1:]))

# Each is the other's backward.
all_gather.register_autograd(lambda ctx, grad: reduce_scatter(grad))
reduce_scatter.register_autograd(lambda ctx, grad: all_gather(grad))


def function(forward: Callable, backward: Callable) -> Callable:
    """Return the same as a Function: what autograd alone knows."""
    calls = {"forward": lambda _, x: forward(x)}
    calls["backward"] = lambda _, grad: backward(grad)
    parts = {name: staticmethod(call) for name, call in calls.items()}
    return type("Function", (torch.autograd.Function,), parts).apply


def compiled(call: Callable, shape: tuple, device) -> str:
    """Compile a call whole, and its backward; return what is in the graphs."""
    torch._dynamo.reset()
    graphs = []

    def note(graph, _):
        """Compile nothing; note the operations, without their overloads."""
        nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
        graphs.append(" ".join(f"{n.target}".split(".")[-2] for n in nodes))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=note)
    x = torch.ones(shape, device=device, requires_grad=True)
    try:
        y = torch.compile(call, backend=backend, fullgraph=True)(x)
        y.sum().backward()
    except torch._dynamo.exc.Unsupported as error:
        return f"refused: {type(error).__name__}"
    return ", backward: ".join(graphs)


def check(op, shape: tuple, rank: int, device) -> None:
    """Check an operator's registration, and its backward across ranks."""
    torch.manual_seed(rank)
    x = torch.randn(shape, dtype=torch.double).to(device).requires_grad_()
    num = len(opcheck(op, (x,)))  # raises if the registration is wrong
    if not passes(lambda x: op(x.sin()), shape, device):
        job.refuse(f"{op._name} has a wrong backward: that is a bug")
    if rank == 0:
        job.say(f"{op._name} passes {num} parts of opcheck, and gradcheck")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, numbers=3).parse_args(argv)


def main() -> None:
    """Check both operators, then see what a compiler makes of them."""
    args = parse_args()
    warnings.filterwarnings("ignore", "Dynamo does not know")
    sums, rows = function(total, total), function(get_rows, get_sum)
    calls = {
        "operator": lambda x: all_gather(x.sin()),
        "Function with all_reduce": lambda x: sums(x.sin()),
        "Function with all_gather": lambda x: rows(x.sin()),
        "operator, result not used": lambda x: (all_gather(x), x.cos())[1],
    }
    with job.ranks(args) as (rank, world_size, device):
        row = (args.numbers,)
        check(all_gather, row, rank, device)
        check(reduce_scatter, (world_size, *row), rank, device)
        for name, call in calls.items():
            graphs = compiled(call, row, device)
            if rank == 0:
                job.say(f"{name}: {graphs}")


if __name__ == "__main__":
    main()
