"""Weights that are there only while they compute.

Ranks: 1, 2, 4
Minutes: 30
Level: hard

The weight of a linear layer, of shape (out, in), is cut into W parts with equally many
rows. `shard` is this rank's part, of shape (out / W, in), and it needs a gradient. Each
rank has its own input `x`, of shape (n, in). Write `y = ex12_5(x, shard)`, which
returns `x @ weight.T` with the whole weight. This is what FSDP does with a unit:

- After the forward pass, the whole weight must not be in memory on any rank. Backward
  gathers it again. After backward, neither the whole weight nor its whole gradient may
  be in memory.
- `loss.backward()` puts into `shard.grad` this rank's rows of the weight's gradient,
  averaged over all ranks. `x` gets the gradient that it would get without sharding, if
  it needs one.
- All ranks call your function and `backward` equally often. There may be several
  layers, and a layer may run more than once before backward.
- The only collectives are all_gathers and reduce_scatters.

Hint 1: Which tensors does autograd keep for the backward of `x @ weight.T`?
Hint 2: Write a `torch.autograd.Function` that keeps only `x` and `shard`. Its backward
gathers the weight for the gradient of x. The gradient of the whole weight goes into a
reduce_scatter.
Hint 3: `ctx.save_for_backward(x, shard)`; in backward, `gradient @ gathered(shard)` for
x, and `dist.reduce_scatter_single(mine, gradient.T @ x)` for the shard.
"""


# %% solution
def gathered(shard):
    weight = shard.new_empty(dist.get_world_size() * len(shard), shard.shape[1])
    dist.all_gather_single(weight, shard)
    return weight


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gathered(shard).T

    @staticmethod
    def backward(ctx, gradient):
        x, shard = ctx.saved_tensors
        mine = torch.empty_like(shard)
        dist.reduce_scatter_single(mine, gradient.T @ x)
        return gradient @ gathered(shard), mine / dist.get_world_size()


def ex12_5(x, shard):
    """Return x times the whole weight, transposed, and keep only a part of it."""
    return Layer.apply(x, shard)


# %% check
import gc

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SIZE = 16
GATHER = "all_gather all_gather_single all_gather_into_tensor "
REDUCE = "reduce_scatter reduce_scatter_single reduce_scatter_tensor"
CASES = {  # layers, how often they run, whether x needs a gradient
    "one layer": (1, 1, True),
    "an input that needs no gradient": (1, 1, False),
    "three layers": (3, 1, True),
    "two layers that run twice": (2, 2, False),
}


STORAGES = {}


class Made(TorchDispatchMode):
    """Remember the storages that operations make."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, result)):
            if isinstance(tensor, torch.Tensor):
                s = tensor.untyped_storage()
                STORAGES[s.data_ptr()] = StorageWeakRef(s), s.nbytes()
        return result


def refuse(when, *known):
    """Refuse more than what is known; a thread of gloo's may let go a bit later."""
    own = {t.untyped_storage().data_ptr(): t.nbytes for t in known if t is not None}
    until, left = time.monotonic() + 1, 1
    while left > 0.25 and time.monotonic() < until:
        gc.collect()
        alive = {k: n for k, (ref, n) in STORAGES.items() if not ref.expired()}
        left = sum(n - own.get(k, 0) for k, n in alive.items()) / 8 / SIZE**2
    if left > 0.25:
        raise Wrong(f"""{when}, rank {rank} still has {left:.3g} times as many numbers
            as the weight, beside inputs, outputs and shards.""")


def draw(seeds, *shape):
    return torch.randn(shape, generator=seeds, dtype=torch.float64)


def check(answer, case):
    only(GATHER + REDUCE, "all_gathers and reduce_scatters are enough.")
    for number, (name, (num, times, needs)) in enumerate(case.each(CASES)):
        STORAGES.clear()
        seeds = dice(number)
        weights = [draw(seeds, SIZE, SIZE).requires_grad_() for _ in range(num)]
        shards = [w.detach().chunk(world_size)[rank].clone() for w in weights]
        shards = [shard.requires_grad_() for shard in shards]
        inputs = [draw(seeds, 2, SIZE).requires_grad_(needs) for _ in range(world_size)]
        x = inputs[rank].detach().clone().requires_grad_(needs)
        with Made():
            ys = [x]
            for shard in shards * times:
                ys.append(answer(ys[-1], shard))
            refuse("after forward", *shards, *ys)
            loss = ys[-1].square().sum()
            loss.backward()
            grads = [t.grad for t in (x, *shards)]
            refuse("after backward", loss, *shards, *ys, *grads)
        each = []
        for given in inputs:
            want = given
            for weight in weights * times:
                want = want @ weight.T
            want.square().sum().backward()
            each.append([w.grad.chunk(world_size)[rank] for w in weights])
            if given is inputs[rank]:
                got, want = ys[-1].detach(), want.detach()
                expect(f"rank {rank}'s output", got, want, 1e-9, 1e-9)
                what = f"the gradient of rank {rank}'s x"
                expect(what, x.grad, given.grad, 1e-9, 1e-9)
            for weight in weights:
                weight.grad = None
        for i, shard in enumerate(shards):
            parts = [grads[i] for grads in each]
            what = f"the gradient of rank {rank}'s shard"
            compare(what, shard.grad, sum(parts) / world_size, {
                "This is the sum: divide it by the world size.": sum(parts),
                "This is what the rank itself has computed for its rows.": parts[rank],
                "This was divided by the world size, and not added up.":
                    parts[rank] / world_size,
            }, 1e-9, 1e-9)  # fmt: skip
