"""Accumulate as if it were one batch.

Ranks: 1, 2, 4
Minutes: 20

The batch of a step does not fit into memory, so each rank gets its share in pieces.
There is memory for the largest piece, but not for more samples at once.

`ex5_5(ddp, pieces)` is called on every rank. `ddp` is the wrapped model, which has no
gradients yet. `pieces` is a list of pairs `(x, y)`. They have different sizes, and the
ranks have different numbers of them. Write the forward and backward passes of the step.
After the call, each gradient is that of the mean of `cross_entropy` over *all samples
of all ranks*. DDP has averaged the gradients once, not once per piece.

Hint 1: By what is each sample's loss divided in one big batch? By what do you divide
it, and what does DDP do to it afterwards?
Hint 2: Count the samples of all ranks first. Take sums of losses, not means. DDP will
divide by the world size, so multiply by it. Run all pieces but the last under
`ddp.no_sync()`, forward passes too.
Hint 3: `loss = F.cross_entropy(ddp(x), y, reduction="sum") * world_size / total`; `with
ddp.no_sync() if more else contextlib.nullcontext():`
"""


# %% solution
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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

CASES = {  # the sizes of the pieces on each rank
    "one piece": [[6]] * 4,
    "equal pieces": [[4, 4, 4]] * 4,
    "the last piece is smaller": [[4, 4, 1]] * 4,
    "ranks with fewer samples": [[4, 4], [4, 2], [1, 1], [3, 4]],
    "ranks with fewer pieces": [[2, 5, 3], [4], [1, 1], [6, 2]],
}


def pieces_of(r, sizes):
    """Return the pieces that rank r gets; any rank can compute them."""
    seed, found = dice(r), []
    for size in sizes:
        x = torch.randn(size, 5, generator=seed).double() + r
        found.append((x, torch.randint(0, 3, (size,), generator=seed)))
    return found


def check(answer, case):
    for name, sizes in case.each(CASES):
        torch.manual_seed(1)
        layers = nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
        ddp = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).double())
        model, calls, through = ddp.module, [], []

        def note(state, bucket, calls=calls):
            calls.append(bucket.buffer().numel())
            return allreduce_hook(state, bucket)

        ddp.register_comm_hook(None, note)
        ddp.register_forward_pre_hook(lambda *_, seen=through: seen.append(True))
        every = [pieces_of(r, sizes[r]) for r in range(world_size)]
        with one_at_a_time(model) as seen:
            answer(ddp, [(x.clone(), y) for x, y in every[rank]])
        got, own = grads(model, "`{}` has no gradient after the call."), sizes[rank]
        if not through:
            raise Wrong("it calls the model inside DDP; only ddp(x) prepares DDP.")
        if max(seen) > max(own):
            raise Wrong(f"""{max(seen)} samples went through the model at once; the
                largest piece has {max(own)}, and there is no memory for more.""")
        judge(model, got, every)
        if not calls and world_size > 1:
            raise Wrong("""the gradients are right, but DDP did not average them: let
                it, with the last piece outside of no_sync, forward and backward.""")
        if len(calls) > 1:
            raise Wrong(f"""the gradients are right, but DDP averaged {len(calls)} times
                for {len(own)} pieces. A forward outside of no_sync makes the next
                backward talk.""")


def judge(model, got, every):
    """Compare the gradient with that of one batch, and with common mistakes'."""
    sums = []  # of each piece, by rank
    for part in every:
        losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in part]
        sums.append([gradient(model, loss) for loss in losses])
    sizes = [[len(y) for _, y in part] for part in every]
    total, whole = sum(map(sum, sizes)), sum(map(sum, sums))
    means = [[g / n for g, n in zip(*pair)] for pair in zip(sums, sizes)]
    of_ranks = [sum(g) / sum(n) for g, n in zip(sums, sizes)]
    own = sum(sums[rank]) * world_size / total
    early = own + (sum(s[0] for s in sums) - world_size * sums[rank][0]) / total
    compare(f"on rank {rank}, the gradient", got, whole / total, {
        "Each piece's mean weighs the same, however small the piece is.":
            sum(sum(part) / len(part) for part in means) / world_size,
        "Each rank's mean weighs the same, however few samples the rank has.":
            sum(of_ranks) / world_size,
        "The pieces' means are added up, and divided by nothing.":
            sum(map(sum, means)) / world_size,
        "The sums of the losses are divided by nothing.": whole / world_size,
        "DDP divides by the world size: multiply by it first.":
            whole / world_size / total,
        "This is the gradient of the last piece only.":
            sum(part[-1] for part in means) / world_size,
        "This is the rank's own gradient.": of_ranks[rank],
        "This is the rank's own gradient, scaled: DDP never averaged. The last piece "
        "goes outside of no_sync, forward and backward.": own,
        "DDP averaged the first piece only. What comes in no_sync after it stays on "
        "its rank: the last piece, not the first, goes outside.": early,
    }, 1e-6, 1e-9)  # fmt: skip
