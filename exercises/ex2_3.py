"""The mean of means.

Ranks: 1
Minutes: 8

Device 0 need not hold all logits if each replica computes its own loss: the **mean**
over those samples of its shard that have a label. `DataParallel` gathers these losses
into a vector. Is the vector's mean the loss of the batch?

`ex2_3(losses, counts)` gets the vector of losses (floats, one per device), and a vector
that says how many samples each device counted (integers). Return the mean over **all**
counted samples of the batch, as a tensor without dimensions. Gradients must flow
through it to `losses`.

A device that counted no sample has a loss of 0 / 0, which is NaN. It must not spoil the
mean. But if a device counted samples and its loss is NaN, your result must be NaN.

Hint 1: Device 0 has three samples and device 1 has one. Whose samples count more in
    `losses.mean()`?
Hint 2: A mean times its count is a sum, and sums can be added. But what is NaN times 0?
Hint 3: Choose the devices that counted something before you multiply: `seen = counts >
    0`, `losses[seen]`.
"""


# %% solution
def ex2_3(losses, counts):
    """Return the mean loss over all samples that were counted on any device."""
    seen = counts > 0
    return (losses[seen] * counts[seen]).sum() / counts.sum()


# %% check
NAN = float("nan")
CASES = {  # losses, samples
    "shards of one size": ([1.0, 3.0], [4, 4]),
    "one device": ([2.5], [3]),
    "uneven shards": ([1.0, 2.0, 7.0], [3, 3, 1]),
    "almost no labels on one device": ([0.5, 4.0], [1000, 1]),
    "no label on a device": ([2.0, NAN, 5.0], [3, 0, 1]),
    "no label on the first device": ([NAN, 4.0], [0, 2]),
}


def check(answer, case):
    for name, (values, numbers) in case.each(CASES):
        losses, counts = torch.tensor(values, requires_grad=True), torch.tensor(numbers)
        weights = counts / counts.sum()
        known = losses.detach().nan_to_num()
        with Untouched(counts=counts):
            got = answer(losses, counts)
        what = f"with losses {values} of {numbers} samples, the result"
        compare(what, got, (known * weights).sum(), {
            "This is the mean of the means.": known.mean(),
            "This is the sum over the samples.": (known * counts).sum(),
            "This divides by the number of devices.": (known * counts).mean(),
            "This is the mean over the devices that have a loss.": losses.nanmean(),
            "NaN times 0 is NaN.": torch.tensor(NAN),
        })  # fmt: skip
        if not got.requires_grad:
            raise Wrong("the result has no graph: nothing can be trained with it.")
        got.backward()
        expect(f"{what} is right, but the gradient of losses", losses.grad, weights)
    case("a real NaN")
    got = answer(torch.tensor([2.0, NAN]), torch.tensor([3, 1]))
    if not got.isnan():
        raise Wrong(f"""device 1 counted a sample and its loss is NaN, but you return
            {got:.4g}: a model that breaks would go unnoticed.""")
