"""One reduce_scatter for many gradients.

Ranks: 1, 2, 3
Minutes: 20

FSDP2 cuts each parameter along its first dimension, as `chunk(W)` does. With W ranks, a
parameter of `rows` rows has pieces of c = ⌈rows / W⌉ rows. Rank 0 keeps the first c
rows, rank 1 the next c, and so on. The last piece may have fewer rows, and some ranks
may get none at all.

`gradients` is the list of the gradients that this rank has computed for the parameters
of one unit. Their shapes differ, but all ranks have the same list of shapes. Return the
list of this rank's pieces of the mean over all ranks. A rank that gets no rows of a
parameter returns a tensor with 0 rows for it, such as one of shape `(0, 5)`.

Many small messages take long, so call `dist.reduce_scatter_single` (or
`dist.reduce_scatter`) only once, and nothing else. Pad each gradient to W · c rows, and
send no more than that. Don't change the gradients.

Hint 1: A reduce_scatter cuts what you give it into W equal parts, and rank r gets part
r. What must be in part r?
Hint 2: Part r has piece r of the first gradient, then piece r of the second one, and so
on. What you send is a matrix with a row for each rank.
Hint 3: Pad each gradient with rows of zeros, and `reshape(W, -1)` it. Then
`torch.cat(…, dim=1)`, and afterwards `split` with the sizes of the pieces.
"""


# %% solution
def ex12_2(gradients):
    """Return this rank's piece of each mean gradient, after one reduce_scatter."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = [-(-len(g) // world_size) for g in gradients]  # of a piece
    parts = []  # (W, numbers of a piece)
    for num, g in zip(rows, gradients):
        padding = g.new_zeros(num * world_size - len(g), *g.shape[1:])
        parts.append(torch.cat([g, padding]).reshape(world_size, -1))
    full = torch.cat(parts, dim=1)
    mine = full.new_empty(full.shape[1])
    dist.reduce_scatter_single(mine, full.flatten())
    mine /= world_size
    pieces = mine.split([part.shape[1] for part in parts])
    return [
        piece.view(num, *g.shape[1:])[: max(len(g) - rank * num, 0)]
        for num, g, piece in zip(rows, gradients, pieces)
    ]


# %% check
NAMES = "reduce_scatter reduce_scatter_single reduce_scatter_tensor"
CASES = {
    "one gradient": [(6, 2)],
    "two gradients": [(6, 4), (6,)],
    "rows that are left over": [(7, 3), (5,)],
    "fewer rows than ranks": [(8, 2), (2, 5), (1,)],
    "a layer of a GPT": [(12, 4), (12,), (4, 4), (4,), (16, 4), (16,), (4, 16), (4,)],
    "images": [(3, 2, 2, 2), (3,)],
}


def check(answer, case):
    sizes = []

    def note(output, given=None, *args, **kwargs):
        given = kwargs.get("input", kwargs.get("input_list", given))
        some = given if isinstance(given, list) else [given]
        sizes.append(sum(t.numel() for t in some))

    only(NAMES, "one reduce_scatter is enough.")
    spy(dist, NAMES, note)
    for number, (name, shapes) in enumerate(case.each(CASES)):
        seeds = dice(100 * number + rank)
        given = [torch.randn(s, generator=seeds, dtype=torch.float64) for s in shapes]
        sizes.clear()
        with Untouched(gradients=given):
            got = answer(given)
        called = list(sizes)
        rows = [-(-shape[0] // world_size) * world_size for shape in shapes]
        most = sum(n * torch.Size(s[1:]).numel() for n, s in zip(rows, shapes))
        got = unpack(got, len(shapes), "one piece for each gradient")
        want, known = reference(got, lambda function: list(function(given)))
        for i, shape in enumerate(shapes):
            values = {text: pieces[i] for text, pieces in known.items()}
            what = f"rank {rank}'s piece of the gradient of shape {list(shape)}"
            compare(what, got[i], want[i], values, 1e-9, 1e-12)
        if len(called) != 1 or called[0] > most:
            raise Wrong(f"""the pieces are right, but rank {rank} calls reduce_scatter
                with {called} numbers; one call with {most} is enough.""")


# %% mistake: the sum
# > This is the sum: divide it by the world size.
# - mine /= world_size
# %% mistake: lays the gradients end to end, and cuts what comes out
# > What you send has one gradient after the other, and not one rank after the other.
# ~ full.flatten() => torch.cat([part.flatten() for part in parts])
# %% mistake: its own pieces
# > This is what the rank itself has computed.
# ~ mine /= world_size => mine = full[rank]
# %% mistake: rank 0's pieces
# > These rows belong to rank 0.
# ~ full.flatten() => full[:1].repeat(world_size, 1).flatten()
