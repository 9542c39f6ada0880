"""Answers to exercise 4.3 that the check must take or refuse."""


# %% right: each rank broadcasts in turn, so that nothing is padded
def ex4_3(x):
    parts = []
    for src in range(dist.get_world_size()):
        length = torch.tensor(len(x))
        dist.broadcast(length, src)
        part = x if src == dist.get_rank() else x.new_empty(int(length), x.shape[1])
        dist.broadcast(part, src)
        parts.append(part)
    return torch.cat(parts)


# %% right: objects bring their size along (they are pickled, which takes longer)
def ex4_3(x):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x)
    return torch.cat(parts)


# %% wrong: assumes that the others have as many rows
# = parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
# = dist.all_gather(parts, x)
# = return torch.cat(parts)
# %% wrong: leaves the padding in
# ~ [part[:n] for part, n in zip(parts, lengths, strict=True)] => parts
# %% wrong: takes every row of zeros for padding
# - return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])
# + return torch.cat([part[part.any(dim=1)] for part in parts])
# %% wrong: cuts every part to its own length
# ~ [:n] for part, n in zip(parts, lengths, strict=True) => [: len(x)] for part in parts
# %% wrong: makes room for float32 only
# ~ parts, x => parts, x.float()
# %% wrong: puts its own rows first
#   dist.all_gather_object(parts, x)
# + parts.insert(0, parts.pop(dist.get_rank()))
# %% wrong: cuts all to the shortest, and drops the tails
#   dist.all_gather_object(parts, x)
# ~ parts => [part[: min(map(len, parts))] for part in parts]
# %% wrong: lengthens the caller's own tensor
# - padded = x.new_zeros(max(lengths), x.shape[1])
# ~ padded[: len(x)] = x => padded = x.resize_(max(lengths), x.shape[1])
