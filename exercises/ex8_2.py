"""Top-k with error feedback.

Ranks: 1, 2, 4
Minutes: 20

Each rank has its own `gradient` and its own `residual`, all of one shape, and may send
only `k` values with their indices. So it adds the gradient to the residual, and sends
the k values that are largest in magnitude. The others stay in `residual`, in place, for
the next step. Return the mean over all ranks of what was sent, as a dense tensor of the
gradient's shape and dtype.

If a rank does not send a value that another rank sends, the value counts as 0 on this
rank. Don't change `gradient`. Each rank may pass at most 2 k numbers to collectives.

Hint 1: Whatever a rank sends must vanish from its residual, and whatever it does not
send must be in it. Which one equation says both?
Hint 2: Ranks choose different indices, so an all_reduce of the values would add up what
does not belong together. Gather the indices and the values, and add each to its place.
Hint 3: `index = (residual + gradient).flatten().abs().topk(k).indices`, two
`dist.all_gather`s, and `mean.index_add_(0, indices, values)`, which adds where an index
comes twice.
"""


# %% solution
def ex8_2(gradient, residual, k):
    """Return the mean of all ranks' k largest values; keep the rest in residual."""
    residual += gradient
    flat, world_size = residual.view(-1), dist.get_world_size()
    index = flat.abs().topk(k).indices
    values = flat[index]
    flat[index] = 0  # what is sent leaves the residual
    indices = [torch.empty_like(index) for _ in range(world_size)]
    parts = [torch.empty_like(values) for _ in range(world_size)]
    dist.all_gather(indices, index)
    dist.all_gather(parts, values)
    mean = torch.zeros_like(flat)
    mean.index_add_(0, torch.cat(indices), torch.cat(parts))
    return mean.view_as(gradient) / world_size


# %% check
GATHERS = "all_gather all_gather_single all_gather_into_tensor all_reduce"
CASES = {
    "one value of seven": ((7,), 1, torch.float32, False),
    "a matrix": ((6, 5), 4, torch.float32, False),
    "ranks that choose the same values": ((4, 8), 3, torch.float64, True),
    "all values": ((3, 4), 12, torch.float32, False),
}


def chosen(x, k, signed=False):
    """Return x with zeros in place of all but the k largest values."""
    flat = x.flatten()
    index = (flat if signed else flat.abs()).topk(k).indices
    return torch.zeros_like(flat).index_copy(0, index, flat[index]).view_as(x)


def check(answer, case):
    handed = []

    def note(output, given=None, *args, **kwargs):
        held = given if isinstance(given, torch.Tensor) else output
        handed.append(held.numel() if isinstance(held, torch.Tensor) else 0)

    only(GATHERS, "gather the values and their indices.")
    spy(dist, GATHERS, note)
    for name, (shape, k, dtype, same) in case.each(CASES):
        residuals = [torch.zeros(shape, dtype=dtype) for _ in range(world_size)]
        residual = residuals[rank].clone()
        for step, when in enumerate(("first", "second", "third")):
            seeds = [dice(9 * step + (not same) * r) for r in range(world_size)]
            grads = [torch.randn(shape, generator=d, dtype=dtype) for d in seeds]
            given = grads[rank].clone()
            with Untouched(gradient=given):
                handed.clear()
                got = answer(given, residual, k)
            whole = [e + g for e, g in zip(residuals, grads)]
            sent = [chosen(x, k) for x in whole]
            own, mean, last = sent[rank], sum(sent) / world_size, sent[0]
            for one in sent:
                last = torch.where(one != 0, one, last)
            compare(f"in the {when} step, the mean", got, mean, {
                "This is the sum: divide it by the world size.": sum(sent),
                "It forgets what earlier steps did not send.":
                    sum(chosen(g, k) for g in grads) / world_size,
                "This chooses the largest values, not the largest magnitudes.":
                    sum(chosen(x, k, True) for x in whole) / world_size,
                "Where ranks send the same index, only one of them counts.":
                    last / world_size,
                "This is what the rank itself sent.": own,
                "This is the mean of all values, and not only of those sent.":
                    sum(whole) / world_size,
            }, 1e-5, 1e-6)  # fmt: skip
            before = residuals[rank]
            residuals = [x - s for x, s in zip(whole, sent)]
            what = f"after the {when} step, rank {rank}'s residual"
            compare(what, residual, residuals[rank], {
                "It is what it was: nothing is left for the next step.": before,
                "What was sent is still in it, so it will be sent again.": whole[rank],
                "This is what was sent; what was not sent must stay.": own,
                "It forgets what earlier steps have left.": grads[rank] - own,
                "The mean was taken away, not what this rank sent.":
                    whole[rank] - mean,
            }, 1e-5, 1e-6)  # fmt: skip
            if sum(handed) > 2 * k:
                raise Wrong(f"""the mean is right, but rank {rank} handed {sum(handed)}
                    numbers to collectives; for k = {k}, {2 * k} are enough.""")
