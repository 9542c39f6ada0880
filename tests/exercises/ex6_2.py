"""Answers to exercise 6.2 that the check must take or refuse."""


# %% right: means, weighed by their labels; micro-batches without one are only run
def ex6_2(model, x, y, num):
    labels = [int((part >= 0).sum()) for part in y.chunk(num)]
    batch_loss = 0.0
    for piece, target, n in zip(x.chunk(num), y.chunk(num), labels, strict=True):
        output = model(piece)
        if n:
            loss = F.cross_entropy(output, target) * n / sum(labels)
            loss.backward()
            batch_loss += float(loss)
    return batch_loss


# %% right: skips a micro-batch without labels, forward too
#   for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# +     if (target == -100).all():
# +         continue
# %% right: takes only the samples with a label forward
#   for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# +     piece, target = piece[target != -100], target[target != -100]
# +     if not len(target):
# +         continue
# %% wrong: the mean of the means
# ~ (model(piece), target, reduction="sum") / total => (model(piece), target) / num
# %% wrong: adds the means up
# ~ (model(piece), target, reduction="sum") / total => (model(piece), target)
# %% wrong: divides by samples, labeled or not
# ~ / total => / len(x)
# %% wrong: weighs each mean by its samples
# - loss = F.cross_entropy(model(piece), target, reduction="sum") / total
# + loss = F.cross_entropy(model(piece), target) * len(piece) / len(x)
# %% wrong: weighs by labels, and forgets that a mean over none is NaN
# - loss = F.cross_entropy(model(piece), target, reduction="sum") / total
# + loss = F.cross_entropy(model(piece), target) * (target != -100).sum() / total
# %% wrong: right gradients, and the loss of the last micro-batch
# ~ batch_loss + => batch_loss
# %% wrong: drops the smaller micro-batch
# - total, batch_loss = (y != -100).sum(), 0.0
# + x, y = (t[: len(t) // num * num] for t in (x, y))
# + total, batch_loss = (y != -100).sum(), 0.0
# %% wrong: the whole batch at once
#   total, batch_loss = (y != -100).sum(), 0.0
# + num = 1
# %% wrong: never calls backward
# - loss.backward()
# %% wrong: one backward for all, so that all activations are in memory
# - loss.backward()
# ~ loss.item() => loss
# - return batch_loss
# + batch_loss.backward()
# + return batch_loss.item()
