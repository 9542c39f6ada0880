"""Buffers that stay equal.

Ranks: 1, 2, 4
Minutes: 15

DDP averages gradients, but not buffers, such as the running mean of a batch
normalization. Each rank updates its own buffers from its own batches, so they drift
apart. Before you evaluate or save, make them equal.

`ex5_4(model)` is called on every rank. After the call, on every rank,

- a floating-point buffer holds the mean of all ranks' values;
- any other buffer, such as a step counter or a mask, holds rank 0's value.

Write into the buffers in place, in their dtype. Leave the parameters alone.

Hint 1: Which tensors does `model.buffers()` name? Which of them would
`model.state_dict()` leave out, and what would it add?
Hint 2: Take the buffers one by one: the floating-point ones through an all_reduce, the
others through a broadcast. All ranks have the same list.
Hint 3: `if buffer.is_floating_point(): dist.all_reduce(buffer, dist.ReduceOp.AVG)`,
else `dist.broadcast(buffer, src=0)`.
"""

# %% solution
import torch
import torch.distributed as dist


def ex5_4(model):
    """Give every rank the same buffers: means of floats, rank 0's otherwise."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer, dist.ReduceOp.AVG)
        else:
            dist.broadcast(buffer, src=0)


# %% check
def buffered(model, persistent=True, **tensors):
    for name, tensor in tensors.items():
        model.register_buffer(name, tensor, persistent)
    return model


def shared():
    table = torch.zeros(4)
    return nn.Sequential(*(buffered(nn.Linear(2, 2), table=table) for _ in range(2)))


CASES = {
    "batch normalization":
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)),
    "no buffers": lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)),
    "a mask of booleans":
        lambda: buffered(nn.Linear(3, 3), mask=torch.zeros(3).bool(), unset=None),
    "a buffer that is not saved":
        lambda: buffered(nn.BatchNorm1d(3), persistent=False, cache=torch.zeros(5)),
    "a single float64 number":
        lambda: buffered(nn.Linear(2, 2), scale=torch.tensor(0.0).double()),
    "one buffer in two layers": shared,
}  # fmt: skip


def check(answer, case):
    for name, make in case.each(CASES):
        torch.manual_seed(100 + rank)  # the parameters differ too
        model, parts = make(), {}  # values by name: one of each rank
        for key, buffer in model.named_buffers():
            parts[key] = []
            for r in range(world_size):
                part = torch.randint(1, 100, buffer.shape, generator=dice(r)) + 100 * r
                part = part % 2 if buffer.dtype is torch.bool else part
                parts[key].append(part.to(buffer.dtype))
            buffer.copy_(parts[key][rank])
        before = dict(model.named_buffers())
        with Untouched(**{"the parameters": list(model.parameters())}):
            answer(model)
        for key, buffer in model.named_buffers():
            if buffer is not before[key]:
                raise Wrong(f"""`{key}` is another tensor now: write into the one it
                    was.""")
            judge(f"on rank {rank}, `{key}`", buffer, parts[key])


def judge(what, buffer, parts):
    """Compare a buffer with what it should be, and with what mistakes make of it."""
    first, own, total = parts[0], parts[rank], sum(parts)
    if not buffer.is_floating_point():
        others = enumerate(parts[1:], 1)
        return compare(what, buffer, first, {
            "It holds what it held before; rank 0's should be there.": own,
            "Nothing is left of what rank 0 held.": torch.zeros_like(first),
            **{f"This is what rank {r} held, not rank 0.": part for r, part in others},
            "This is the mean over the ranks.": total // world_size,
            "This is the sum over the ranks.": total,
        })  # fmt: skip
    every, mean, mistakes = everyone(buffer), total / world_size, {}
    if torch.equal(every[0], mean) and not torch.equal(buffer, mean):
        mistakes["Rank 0 alone holds the mean: all_reduce gives it to all."] = buffer
    elif all(torch.equal(found, first) for found in every) and world_size > 1:
        mistakes["All ranks hold rank 0's; the mean was asked for."] = first
    else:
        mistakes["It holds what it held before."] = own
    if torch.allclose(buffer, mean, rtol=1e-2):
        mistakes["The mean was computed in fewer digits than the buffer has."] = buffer
    if on_the_way(buffer, own, mean):
        mistakes["The own value weighs more than the others'."] = buffer
    stack = torch.stack(parts)
    compare(what, buffer, mean, mistakes | {
        "This is the largest of the ranks' values, not the mean.": stack.amax(dim=0),
        "This is the smallest of the ranks' values, not the mean.": stack.amin(dim=0),
    } | undivided(total))  # fmt: skip


def on_the_way(value, own, mean):
    """Return whether a value lies between the mean and the rank's own value."""
    way, gone = (own - mean).double().flatten(), (value - mean).double().flatten()
    share = (gone @ way / way.square().sum()).item() if way.any() else 0
    return 0 < share < 1 and torch.allclose(gone, share * way)
