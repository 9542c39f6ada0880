"""Micro-batches that add up to the batch.

Ranks: 1
Minutes: 15

A batch `x` of shape `(B, D)` with labels `y` of shape `(B,)` goes through `model` in
`num` micro-batches. `x.chunk(num)` cuts them, so the last one may be smaller. The label
-100 means "no label here", and `cross_entropy` leaves such samples out of its mean.

The gradients are None before the call. After the call, they must be the gradients of
`cross_entropy(model(x), y)`, as if the batch had gone through in one piece. Run each
micro-batch's backward pass before the next forward pass, so that only one micro-batch's
activations are in memory at a time. Return the loss of the whole batch as a float.

The batch has at least one label, but a micro-batch may have none at all. You can skip
such a micro-batch.

Hint 1: `cross_entropy` is a mean over what? Is it the same number in each micro-batch?
Hint 2: Take the sum in each micro-batch, and divide by the labels of the whole batch,
which you can count before.
Hint 3: `loss = F.cross_entropy(model(piece), target, reduction="sum") / total` with
`total = (y != -100).sum()`; then `loss.backward()` for each.
"""


# %% solution
def ex6_2(model, x, y, num):
    """Backward in num micro-batches; return the loss of the whole batch."""
    total, batch_loss = (y != -100).sum(), 0.0
    for piece, target in zip(x.chunk(num), y.chunk(num), strict=True):
        loss = F.cross_entropy(model(piece), target, reduction="sum") / total
        loss.backward()
        batch_loss += loss.item()
    return batch_loss


# %% check
CASES = {  # samples, micro-batches, samples without a label
    "one micro-batch": (8, 1, ()),
    "equal micro-batches": (12, 3, ()),
    "the last one is smaller": (10, 4, ()),
    "labels missing here and there": (12, 3, (0, 5, 6, 7)),
    "a micro-batch without labels": (9, 3, (3, 4, 5, 8)),
    "one label in all": (8, 4, (0, 1, 2, 3, 4, 6, 7)),
}


def check(answer, case):
    for name, (size, num, without) in case.each(CASES):
        torch.manual_seed(size)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
        x, y = torch.randn(size, 5).double(), torch.randint(0, 4, (size,))
        y[list(without)] = -100
        losses, gone = losses_of(model, x, y, num), set()
        slopes = {text: gradient(model, loss) for text, loss in losses.items()}
        losses = {text: loss.item() for text, loss in losses.items()}

        def waits(given, x=x, y=y, gone=gone):
            rows = (x[:, None] == given[None]).all(dim=2).any(dim=1)
            gone.update(rows.nonzero().flatten().tolist())
            return (y[rows] != -100).any()

        untouched, most = Untouched(x=x, y=y, model=model), len(x.chunk(num)[0])
        with one_at_a_time(model, waits) as seen:
            loss = answer(model, x, y, num)
        untouched()
        if max(seen, default=0) > most:
            raise Wrong(f"{max(seen)} samples went through at once; {most} may.")
        labeled = {i for i, label in enumerate(y.tolist()) if label != -100}
        if lost := labeled - gone:
            raise Wrong(f"""{len(lost)} of {len(labeled)} samples with a label never
                went through the model: {sorted(lost)}.""")
        lacks = "there are no gradients after the call: it lacks backward()."
        got = grads(model, lacks)
        if loss is None or loss != loss:
            raise Wrong(f"the loss is {loss}; so is a mean over no labels.")
        want = slopes.pop("right"), losses.pop("right")
        compare("the gradient", got, want[0], slopes, 1e-6, 1e-9)
        compare("the loss", loss, want[1], losses, 1e-6, 1e-9)


def losses_of(model, x, y, num):
    """Return the loss that is right, and those of mistakes."""
    pieces = list(zip(x.chunk(num), y.chunk(num), strict=True))
    sums = [F.cross_entropy(model(a), b, reduction="sum") for a, b in pieces]
    labels = [(b != -100).sum() for _, b in pieces]
    means = [s / n for s, n in zip(sums, labels) if n]
    shares = [s / n.clamp(min=1) * len(b) for s, n, (_, b) in zip(sums, labels, pieces)]
    return {
        "right": sum(sums) / sum(labels),
        "This is the mean of the micro-batches' means; they have unequal numbers of "
        "labels.": sum(means) / len(pieces),
        "The micro-batches' means are added up, and divided by nothing.": sum(means),
        "The sums are divided by nothing.": sum(sums),
        "Samples without a label are counted too.": sum(sums) / len(y),
        "Each mean is weighed by its samples, not by its labels.": sum(shares) / len(y),
        "This is the last micro-batch only.": sums[-1] / labels[-1].clamp(min=1),
        "This is the last micro-batch's share only.": sums[-1] / sum(labels),
    }
