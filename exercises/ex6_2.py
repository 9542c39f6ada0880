"""Micro-batches that add up to the batch.

Chapter: 6
Ranks: 1
Minutes: 15

A batch `x` of shape `(B, D)` with labels `y` of shape `(B,)` goes through `model` in
`num` micro-batches, as `x.chunk(num)` cuts them, so the last may be smaller. The label
-100 means "no label here", and `cross_entropy` leaves such samples out of its mean.

After the call the gradients, which were None before, are those of
`cross_entropy(model(x), y)`, but computed one micro-batch at a time. Each backward pass
comes before the next forward pass, because otherwise all activations would be in memory
at once. Return the loss of the whole batch as a float.

There is at least one label, but a micro-batch may have none at all. Then it needs
neither a backward pass nor a forward pass.

Hint 1: `cross_entropy` is a mean over what? Is it the same number in each micro-batch?
Hint 2: Take the sum in each micro-batch, and divide by the labels of the whole batch,
which you can count before.
Hint 3: `loss = F.cross_entropy(model(piece), target, reduction="sum") / total` with
`total = (y != -100).sum()`; then `loss.backward()` for each.
"""

# %% solution
from torch.nn import functional as F


def ex6_2(model, x, y, num):
    """Backward in num micro-batches; return the loss of the whole batch."""
    total, batch_loss = (y != -100).sum(), 0.0
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        loss = F.cross_entropy(model(piece), target, reduction="sum") / total
        loss.backward()
        batch_loss += loss.item()
    return batch_loss


# %% check
from allranks.exercises.oracle import compare
from torch import nn
from torch.nn import functional as F

CASES = {  # samples, micro-batches, samples without a label
    "one micro-batch": (8, 1, ()),
    "equal micro-batches": (12, 3, ()),
    "the last one is smaller": (10, 4, ()),
    "labels missing here and there": (12, 3, (0, 5, 6, 7)),
    "a micro-batch without labels": (9, 3, (3, 4, 5, 8)),
    "one label in all": (8, 4, (0, 1, 2, 3, 4, 6, 7)),
}


def check(answer, case):
    for name, (size, num, without) in CASES.items():
        case(name)
        torch.manual_seed(size)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        x, y = torch.randn(size, 5).double(), torch.randint(0, 4, (size,))
        y[list(without)] = -100
        facts = judge_by(model, x, y, num)
        seen, gone, most = [], set(), len(x.chunk(num)[0])
        hooks = watch(model, x, y, seen, gone)
        untouched = Untouched(x=x, y=y, model=model)
        loss = answer(model, x, y, num)
        untouched()
        for hook in hooks:
            hook.remove()
        if max(seen, default=0) > most:
            raise Wrong(f"{max(seen)} samples went through at once; {most} may.")
        labelled = {i for i, label in enumerate(y.tolist()) if label != -100}
        if lost := labelled - gone:
            raise Wrong(
                f"{len(lost)} of {len(labelled)} samples with a label never went "
                f"through the model: {sorted(lost)}."
            )
        grads = [p.grad for p in model.parameters()]
        if any(grad is None for grad in grads):
            raise Wrong("there are no gradients after the call: it lacks backward().")
        got = torch.cat([grad.flatten() for grad in grads])
        if loss is None or loss != loss:
            raise Wrong(f"the loss is {loss}; so is a mean over no labels.")
        for what, value, which in ("the gradient", got, 0), ("the loss", loss, 1):
            mistakes = {text: pair[which] for text, pair in facts.items()}
            want = mistakes.pop("right")
            compare(what, value, want, mistakes, 1e-6, 1e-9)


def watch(model, x, y, seen, gone):
    """Note how many samples go forward, and which; refuse it while one is waiting."""
    waiting = set()

    def before(module, args):
        if waiting:
            raise Wrong(
                f"forward number {len(seen) + 1} comes before the backward of number "
                f"{min(waiting)}: the activations of both are in memory."
            )
        seen.append(len(args[0]))

    def after(module, args, output):
        rows = (x[:, None] == args[0][None]).all(dim=2).any(dim=1)
        gone.update(rows.nonzero().flatten().tolist())
        if output.requires_grad and (y[rows] != -100).any():
            waiting.add(len(seen))
            output.register_hook(lambda _, number=len(seen): waiting.discard(number))

    return (
        model.register_forward_pre_hook(before),
        model.register_forward_hook(after),
    )


def judge_by(model, x, y, num):
    """Gradient and loss of what is right, and of each mistake."""
    pieces = list(zip(x.chunk(num), y.chunk(num), strict=True))
    sums = [F.cross_entropy(model(a), b, reduction="sum") for a, b in pieces]
    labels = [(b != -100).sum() for _, b in pieces]
    means = [s / n for s, n in zip(sums, labels, strict=True) if n]
    sizes = [len(b) for _, b in pieces]
    shares = [
        s / n.clamp(min=1) * size / len(y)
        for s, n, size in zip(sums, labels, sizes, strict=True)
    ]
    losses = {
        "right": sum(sums) / sum(labels),
        "This is the mean of the micro-batches' means; they have unequal numbers of "
        "labels.": sum(means) / len(pieces),
        "The micro-batches' means are added up, and divided by nothing.": sum(means),
        "The sums are divided by nothing.": sum(sums),
        "Samples without a label are counted too.": sum(sums) / len(y),
        "Each mean is weighed by its samples, not by its labels.": sum(shares),
        "This is the last micro-batch only.": sums[-1] / labels[-1].clamp(min=1),
        "This is the last micro-batch's share only.": sums[-1] / sum(labels),
    }
    found = {}
    for text, loss in losses.items():
        grads = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
        found[text] = torch.cat([grad.flatten() for grad in grads]), loss.item()
    return found


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
def ex6_2(model, x, y, num):
    labels, batch_loss = (y != -100).sum(), 0.0
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        if (target == -100).all():
            continue
        loss = F.cross_entropy(model(piece), target, reduction="sum") / labels
        loss.backward()
        batch_loss += loss.item()
    return batch_loss


# %% right: takes only the samples with a label forward
def ex6_2(model, x, y, num):
    labels, batch_loss = (y != -100).sum(), 0.0
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        known = target != -100
        if known.any():
            output = model(piece[known])
            loss = F.cross_entropy(output, target[known], reduction="sum") / labels
            loss.backward()
            batch_loss += loss.item()
    return batch_loss


# %% wrong: the mean of the means
# = total = 0.0
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     loss = F.cross_entropy(model(piece), target) / num
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: adds the means up
# = total = 0.0
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     loss = F.cross_entropy(model(piece), target)
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: divides by samples, labelled or not
# = total = 0.0
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     loss = F.cross_entropy(model(piece), target, reduction="sum") / len(x)
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: weighs each mean by its samples
# = total = 0.0
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     loss = F.cross_entropy(model(piece), target) * len(piece) / len(x)
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: weighs by labels, and forgets that a mean over none is NaN
# = total, labels = 0.0, (y != -100).sum()
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     share = (target != -100).sum() / labels
# =     loss = F.cross_entropy(model(piece), target) * share
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: right gradients, and the loss of the last micro-batch
# = labels = (y != -100).sum()
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     loss = F.cross_entropy(model(piece), target, reduction="sum") / labels
# =     loss.backward()
# = return loss.item()
# %% wrong: drops the smaller micro-batch
# = total, size = 0.0, len(x) // num
# = labels = (y[: size * num] != -100).sum()
# = for piece, target in zip(x.split(size)[:num], y.split(size)[:num]):
# =     loss = F.cross_entropy(model(piece), target, reduction="sum") / labels
# =     loss.backward()
# =     total += loss.item()
# = return total
# %% wrong: the whole batch at once
# = loss = F.cross_entropy(model(x), y)
# = loss.backward()
# = return loss.item()
# %% wrong: never calls backward
# = total, labels = 0.0, (y != -100).sum()
# = for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
# =     total += F.cross_entropy(model(piece), target, reduction="sum") / labels
# = return total.item()
# %% wrong: one backward for all, so that all activations are in memory
# = labels = [int((part >= 0).sum()) for part in y.chunk(num)]
# = losses = []
# = for piece, target, n in zip(x.chunk(num), y.chunk(num), labels, strict=True):
# =     output = model(piece)
# =     if n:
# =         losses.append(F.cross_entropy(output, target) * n / sum(labels))
# = sum(losses).backward()
# = return float(sum(losses))
