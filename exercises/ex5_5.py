"""Accumulate as if it were one batch.

Chapter: 5
Ranks: 1, 2, 4
Minutes: 20

A step's batch does not fit into memory, so each rank gets its share in pieces: a list
of pairs `(x, y)`. Pieces have different sizes, and ranks have different numbers of
pieces. There is memory for the largest piece, but for no more samples at once. `ddp` is
the wrapped model, which has no gradients yet. Write the forward and backward passes of
the step. After the call, each gradient is that of

> the mean of `cross_entropy` over *all samples of all ranks*,

and DDP has averaged the gradients once, not once per piece.

Hint 1: By what is each sample's loss divided in one big batch? By what do you divide
it, and what does DDP do to it afterwards?
Hint 2: Count the samples of all ranks first. Take sums of losses, not means. DDP will
divide by the world size, so multiply by it. Run all pieces but the last under
`ddp.no_sync()`, forward passes too.
Hint 3: `loss = F.cross_entropy(ddp(x), y, reduction="sum") * world_size / total`; `with
ddp.no_sync() if more else contextlib.nullcontext():`
"""

# %% stub
import contextlib

import torch
import torch.distributed as dist
from torch.nn import functional as F


def ex5_5(ddp, pieces):
    """Backward over pieces [(x, y), ...] as over one batch of all ranks'."""
    raise NotImplementedError


# %% solution
import contextlib

import torch
import torch.distributed as dist
from torch.nn import functional as F


def ex5_5(ddp, pieces):
    """Backward over pieces [(x, y), ...] as over one batch of all ranks'."""
    total = torch.tensor(sum(len(y) for _, y in pieces))
    dist.all_reduce(total)
    scale = dist.get_world_size() / total  # DDP will divide by the world size
    for i, (x, y) in enumerate(pieces, 1):
        silent = ddp.no_sync() if i < len(pieces) else contextlib.nullcontext()
        with silent:  # forward too: it decides whether backward talks
            (F.cross_entropy(ddp(x), y, reduction="sum") * scale).backward()


# %% check
from allranks.exercises.oracle import compare
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F

CASES = {  # the sizes of the pieces on each rank
    "one piece": [[6]] * 4,
    "equal pieces": [[4, 4, 4]] * 4,
    "the last piece is smaller": [[4, 4, 1]] * 4,
    "ranks with fewer samples": [[4, 4], [4, 2], [1, 1], [3, 4]],
    "ranks with fewer pieces": [[2, 5, 3], [4], [1, 1], [6, 2]],
}


def pieces_of(r, sizes):
    """Return the pieces that rank r gets; any rank can compute them."""
    dice = torch.Generator().manual_seed(r)
    found = []
    for size in sizes:
        x = torch.randn(size, 5, generator=dice).double() + r
        found.append((x, torch.randint(0, 3, (size,), generator=dice)))
    return found


def gradient(model, loss):
    """Return the gradient of a loss as one vector."""
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([grad.flatten() for grad in grads])


def check(answer, case):
    for name, sizes in CASES.items():
        case(name)
        torch.manual_seed(1)
        layers = nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
        ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).double())
        model, calls = ddp.module, []

        def note(state, bucket, calls=calls):
            calls.append(bucket.buffer().numel())
            return allreduce_hook(state, bucket)

        ddp.register_comm_hook(None, note)
        through = []
        ddp.register_forward_pre_hook(lambda *_, seen=through: seen.append(True))
        room, largest = [], max(sizes[rank])
        stop_watching = watch(model, room)
        every = [pieces_of(r, sizes[r]) for r in range(world_size)]
        given = [(x.clone(), y) for x, y in every[rank]]
        answer(ddp, given)
        stop_watching()
        lacking = [key for key, p in model.named_parameters() if p.grad is None]
        if lacking:
            raise Wrong(f"`{lacking[0]}` has no gradient after the call.")
        got = torch.cat([p.grad.flatten() for p in model.parameters()])
        if not through:
            raise Wrong("it calls the model inside DDP; only ddp(x) prepares DDP.")
        if max(room) > largest:
            raise Wrong(
                f"{max(room)} samples went through the model at once; the largest "
                f"piece has {largest}, and there is no memory for more."
            )
        judge(model, got, every)
        if not calls and world_size > 1:
            raise Wrong(
                "the gradients are right, but DDP did not average them: let it, with "
                "the last piece outside of no_sync, forward and backward."
            )
        if len(calls) > 1:
            raise Wrong(
                f"the gradients are right, but DDP averaged {len(calls)} times "
                f"for {len(given)} pieces. A forward outside of no_sync makes the next "
                "backward talk."
            )


def watch(model, room):
    """Note what goes forward; refuse it while an earlier one waits for backward."""
    waiting = set()

    def before(module, inputs):
        if waiting:
            raise Wrong(
                f"forward number {len(room) + 1} comes before the backward of number "
                f"{min(waiting)}: the activations of both are in memory."
            )
        room.append(len(inputs[0]))

    def after(module, inputs, output):
        if output.requires_grad:
            waiting.add(len(room))
            number = len(room)
            output.register_hook(lambda _: waiting.discard(number))

    hooks = (
        model.register_forward_pre_hook(before),
        model.register_forward_hook(after),
    )
    return lambda: [hook.remove() for hook in hooks]


def judge(model, got, every):
    """Compare the gradient with that of one batch, and with common mistakes'."""
    sums = []  # of each piece, by rank
    for part in every:
        losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in part]
        sums.append([gradient(model, loss) for loss in losses])
    sizes = [[len(y) for _, y in part] for part in every]
    total = sum(map(sum, sizes))
    by_rank = [sum(part) for part in sums]
    means = [
        [g / n for g, n in zip(*pair, strict=True)]
        for pair in zip(sums, sizes, strict=True)
    ]
    of_pieces = sum(sum(part) / len(part) for part in means) / world_size
    of_ranks = [g / sum(n) for g, n in zip(by_rank, sizes, strict=True)]
    last = sum(part[-1] for part in means) / world_size
    own = by_rank[rank] * world_size / total
    early = own + (sum(s[0] for s in sums) - world_size * sums[rank][0]) / total
    added = sum(sum(part) for part in means) / world_size
    whole = sum(by_rank) / world_size
    mistakes = {
        "Each piece's mean weighs the same, however small the piece is.": of_pieces,
        "Each rank's mean weighs the same, however few samples the rank has.": (
            sum(of_ranks) / world_size
        ),
        "The pieces' means are added up, and divided by nothing.": added,
        "The sums of the losses are divided by nothing.": whole,
        "DDP divides by the world size: multiply by it first.": whole / total,
        "This is the gradient of the last piece only.": last,
        "This is the rank's own gradient.": by_rank[rank] / sum(sizes[rank]),
        "This is the rank's own gradient, scaled: DDP never averaged. The last piece "
        "goes outside of no_sync, forward and backward.": (own),
        "DDP averaged the first piece only. What comes in no_sync after it stays on "
        "its rank: the last piece, not the first, goes outside.": early,
    }
    want = sum(by_rank) / total
    compare(f"on rank {rank}, the gradient", got, want, mistakes, 1e-6, 1e-9)


# %% right: backward without scale; the gradients are put right at the end
def ex5_5(ddp, pieces):
    *most, (x, y) = pieces
    with ddp.no_sync():
        for inputs, labels in most:
            (F.cross_entropy(ddp(inputs), labels) * len(labels)).backward()
    (F.cross_entropy(ddp(x), y) * len(y)).backward()
    mean_size = torch.tensor(float(sum(len(labels) for _, labels in pieces)))
    dist.all_reduce(mean_size, dist.ReduceOp.AVG)
    for weight in ddp.parameters():
        weight.grad /= mean_size


# %% wrong: adds up means, and divides by nothing
# = for i, (x, y) in enumerate(pieces, 1):
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         F.cross_entropy(ddp(x), y).backward()
# %% wrong: the mean of the pieces' means
# = for i, (x, y) in enumerate(pieces, 1):
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         (F.cross_entropy(ddp(x), y) / len(pieces)).backward()
# %% wrong: the mean of the ranks' means
# = num = sum(len(y) for _, y in pieces)
# = for i, (x, y) in enumerate(pieces, 1):
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         (F.cross_entropy(ddp(x), y, reduction="sum") / num).backward()
# %% wrong: forgets that DDP divides
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = for i, (x, y) in enumerate(pieces, 1):
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         (F.cross_entropy(ddp(x), y, reduction="sum") / total).backward()
# %% wrong: only backward is in no_sync
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = for i, (x, y) in enumerate(pieces, 1):
# =     loss = F.cross_entropy(ddp(x), y, reduction="sum")
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         (loss * dist.get_world_size() / total).backward()
# %% wrong: all pieces in no_sync
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = with ddp.no_sync():
# =     for x, y in pieces:
# =         loss = F.cross_entropy(ddp(x), y, reduction="sum")
# =         (loss * dist.get_world_size() / total).backward()
# %% wrong: goes around DDP
# = for x, y in pieces:
# =     (F.cross_entropy(ddp.module(x), y) / len(pieces)).backward()
# %% wrong: clears the gradients before each piece
# = for i, (x, y) in enumerate(pieces, 1):
# =     ddp.zero_grad()
# =     with ddp.no_sync() if i < len(pieces) else contextlib.nullcontext():
# =         F.cross_entropy(ddp(x), y).backward()
# %% wrong: all pieces in no_sync, and an all_reduce by hand
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = with ddp.no_sync():
# =     for x, y in pieces:
# =         (F.cross_entropy(ddp(x), y, reduction="sum") / total).backward()
# = flat = torch.cat([weight.grad.flatten() for weight in ddp.parameters()])
# = dist.all_reduce(flat)
# = parts = flat.split([weight.numel() for weight in ddp.parameters()])
# = for weight, part in zip(ddp.parameters(), parts, strict=True):
# =     weight.grad.copy_(part.view_as(weight))
# %% wrong: puts the pieces together again, for which there is no memory
# = x, y = (torch.cat(parts) for parts in zip(*pieces, strict=True))
# = total = torch.tensor(len(y))
# = dist.all_reduce(total)
# = scale = dist.get_world_size() / total
# = (F.cross_entropy(ddp(x), y, reduction="sum") * scale).backward()
# %% wrong: one graph for all pieces, whose activations are all in memory
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = losses = [F.cross_entropy(ddp(x), y, reduction="sum") for x, y in pieces]
# = (sum(losses) * dist.get_world_size() / total).backward()
# %% wrong: the first piece talks, not the last
# - for i, (x, y) in enumerate(pieces, 1):
# -     silent = ddp.no_sync() if i < len(pieces) else contextlib.nullcontext()
# -     with silent:  # forward too: it decides whether backward talks
# + for i, (x, y) in enumerate(pieces):
# +     with ddp.no_sync() if i > 0 else contextlib.nullcontext():
