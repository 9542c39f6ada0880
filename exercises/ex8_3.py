"""An all_gather that gradients flow through.

Ranks: 1, 2, 4
Minutes: 20

Each rank has its own `x`, of the same shape `(n, …)` on all ranks. Return the `(W n,
…)` tensor of all ranks' rows, in rank order, on every rank. `dist.all_gather` does
that, but no gradients flow back through its result.

Then each rank computes a loss of its own from all rows, and all ranks call `backward`.
Afterwards `x.grad` must hold, on every rank, the gradient of the **sum of all ranks'
losses** with respect to its own rows. Both `x` and the gradient that reaches your
backward may be non-contiguous. Take nothing from `torch.distributed.nn` or
`torch.distributed._functional_collectives`.

Hint 1: Rank 2's loss depends on rank 0's rows. Which rank knows this part of the
gradient, and who needs it?
Hint 2: Each rank gets a gradient of shape `(W n, …)`. Add them up over the ranks; each
rank needs its own n rows of the sum. Which collective does just that?
Hint 3: A `torch.autograd.Function` whose backward calls `dist.reduce_scatter` with
`list(gradient.contiguous().chunk(world_size))`.
"""


# %% solution
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        parts = list(gradient.contiguous().chunk(dist.get_world_size()))
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine


def ex8_3(x):
    """Return all ranks' rows, through which gradients flow back to their ranks."""
    return Gather.apply(x.contiguous())


# %% check
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as old

CASES = {
    "a vector": ((3,), "weighted"),
    "a matrix": ((2, 5), "weighted"),
    "images": ((1, 3, 2, 2), "weighted"),
    "a transposed input": ((4, 3), "strided"),
    "a sum, whose gradient is one number expanded": ((2, 3), "sum"),
    "a gradient that arrives transposed": ((2, 3), "turned"),
}


def draw(shape, r, number):
    return torch.randn(shape, generator=dice(100 * number + r), dtype=torch.float64)


def check(answer, case):
    for module in functional, old:
        names = [n for n in dir(module) if n.startswith(("all_", "reduce_sc"))]
        forbid(module, names, "write it.", "torch's own {} with a graph")
    for number, (name, (shape, kind)) in enumerate(case.each(CASES)):
        rows = [draw(shape, r, number) for r in range(world_size)]
        x = rows[rank].T.contiguous().T if kind == "strided" else rows[rank].clone()
        x.requires_grad_()
        got, whole = answer(x), torch.cat(rows)
        own = torch.cat([rows[rank]] * world_size)
        mistakes = {"These are its own rows, over and over.": own}
        compare("the result", got, whole, mistakes)
        if not got.requires_grad:
            raise Wrong("the result has no graph: nothing flows back to x.")
        weights = [1 + draw(whole.shape, r, 50 + number) for r in range(world_size)]
        if kind == "sum":
            numbers = torch.arange(1, world_size + 1, dtype=torch.double)
            weights = [number.expand(whole.shape) for number in numbers]
        elif kind == "turned":
            weights = [w.T.contiguous().T for w in weights]
        # Copies, because an answer may write into the gradient that arrives.
        parts = [w.clone().chunk(world_size) for w in weights]
        got.backward(weights[rank])
        dist.barrier()
        own, everyone = parts[rank][rank], sum(part[rank] for part in parts)
        compare(f"the result is right, but rank {rank}'s x.grad", x.grad, everyone, {
            "This is what its own loss depends on: other ranks' losses depend on these "
            "rows, too.": own,
            "This is the mean over the ranks, not the sum.": everyone / world_size,
            "This is its own part, times the world size.": own * world_size,
            "These are the gradients of its own loss, summed over all ranks' rows.":
                sum(parts[rank]),
            "These are all ranks' gradients of their own rows; rows of different ranks "
            "do not belong together.": sum(p[r] for r, p in enumerate(parts)),
            "This belongs to rank 0's rows.": sum(part[0] for part in parts),
        }, 1e-6, 1e-9)  # fmt: skip
