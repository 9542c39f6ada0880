"""Answers to exercise 5.5 that the check must take or refuse."""


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
# ~ (F.cross_entropy(ddp(x), y, reduction="sum") * scale) => F.cross_entropy(ddp(x), y)
# %% wrong: the mean of the pieces' means
# ~ (ddp(x), y, reduction="sum") * scale => (ddp(x), y) / len(pieces)
# %% wrong: the mean of the ranks' means
# - dist.all_reduce(total)
# ~ dist.get_world_size() / total  # DDP will divide by the world size => 1 / total
# %% wrong: forgets that DDP divides
# ~ dist.get_world_size() / total  # DDP will divide by the world size => 1 / total
# %% wrong: only backward is in no_sync
#   silent = ddp.no_sync() if i < len(pieces) else contextlib.nullcontext()
# + loss = F.cross_entropy(ddp(x), y, reduction="sum")
# ~ F.cross_entropy(ddp(x), y, reduction="sum") => loss
# %% wrong: all pieces in no_sync
# ~ () if i < len(pieces) else contextlib.nullcontext() => ()
# %% wrong: goes around DDP
# ~ ddp(x) => ddp.module(x)
# %% wrong: clears the gradients before each piece
#   silent = ddp.no_sync() if i < len(pieces) else contextlib.nullcontext()
# + ddp.zero_grad()
# ~ (F.cross_entropy(ddp(x), y, reduction="sum") * scale) => F.cross_entropy(ddp(x), y)
# %% wrong: all pieces in no_sync, and an all_reduce by hand
# ~ () if i < len(pieces) else contextlib.nullcontext() => ()
#   (F.cross_entropy(ddp(x), y, reduction="sum") * scale).backward()
# + for weight in ddp.parameters() if i == len(pieces) else []:
# +     dist.all_reduce(weight.grad, dist.ReduceOp.AVG)
# %% wrong: puts the pieces together again, for which there is no memory
#   total = torch.tensor(sum(len(y) for _, y in pieces))
# + pieces = [tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))]
# %% wrong: one graph for all pieces, whose activations are all in memory
# = total = torch.tensor(sum(len(y) for _, y in pieces))
# = dist.all_reduce(total)
# = losses = [F.cross_entropy(ddp(x), y, reduction="sum") for x, y in pieces]
# = (sum(losses) * dist.get_world_size() / total).backward()
# %% wrong: the first piece talks, not the last
# ~ < len(pieces) => > 1
