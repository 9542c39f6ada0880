"""How large a batch is worth using?

Ranks: 1, 2, 4
Minutes: 25

A larger batch gives a less noisy gradient. You can measure at which size that stops
paying off. On average, a gradient over B samples has a squared norm of |G|² + S / B.
Here G is the gradient over all data, and S says how much the gradients of single
samples differ. The ratio S / |G|² is the *simple gradient-noise scale*: a batch far
below it wastes little, and one far above it wastes most of what it computes.

`gradients` (steps, k, n) holds this rank's gradients: k of them in each of several
steps. Each gradient is the mean over `batch` samples, and no two gradients share
samples. Within a step, all ranks have the same weights, so there are W k gradients of
the same weights. Each step then gives you two numbers: the squared norm of one
gradient, averaged over all W k of them, and the squared norm of their mean. From these
two numbers you can compute |G|² and S.

In a single step, |G|² and S are almost pure noise, and |G|² may even be negative. So
average each of them over the steps before you divide.

Return the floats `(|G|², S, S / |G|²)`, the same on all ranks, right to six digits.

Hint 1: What is the mean of |g|² over the W k small gradients? How many samples does
their mean have?
Hint 2: small = |G|² + S / b and big = |G|² + S / (W k b). Subtract one from the other.
Hint 3: `noise = (small - big) / (1 / b - 1 / (W * k * b))`, and then `signal = small -
noise / b`. The mean gradient comes by one all_reduce, the mean of |g|² by another.
"""

# %% solution
import torch
import torch.distributed as dist


def ex10_4(gradients, batch):
    """Return |G|², S and their ratio from gradients (steps, k, n) of each rank."""
    many = dist.get_world_size() * gradients.shape[1]
    total = gradients.double().sum(1)  # (steps, n)
    squares = gradients.double().square().sum((1, 2))  # (steps,)
    dist.all_reduce(total)
    dist.all_reduce(squares)
    small, big = squares / many, (total / many).square().sum(1)
    noise = ((small - big) / (1 / batch - 1 / (many * batch))).mean()
    signal = small.mean() - noise / batch
    return signal.item(), noise.item(), (noise / signal).item()


# %% check
CASES = {  # steps, k, n, batch, how large the noise of one sample is
    "one step, two gradients": (1, 2, 50, 4, 3.0),
    "no accumulation": (3, 1, 40, 8, 3.0),
    "accumulation": (4, 3, 30, 5, 3.0),
    "more noise than signal": (12, 2, 20, 2, 8.0),
    "hardly any noise": (2, 2, 10, 16, 0.1),
}


def check(answer, case):
    for name, (steps, k, n, batch, noise) in CASES.items():
        if world_size * k < 2:
            continue  # one gradient tells nothing about noise
        case(name)
        numbers = torch.randn(steps, k, n, generator=dice(50 + rank))
        mine = 1 + noise / batch**0.5 * numbers
        mine *= 1 + 0.3 * rank  # no two ranks look alike
        with Untouched(gradients=mine):
            got = answer(mine, batch)
        got = tuple(unpack(got, 3, "(|G|², S, their ratio)"))
        want, known = reference(got, lambda function: function(mine, batch))
        for i, what in enumerate(("|G|²", "S", "S / |G|²")):
            if not abs(float(got[i])) < float("inf"):
                raise Wrong(f"""rank {rank}'s {what} is {float(got[i])}; it should be
                    {want[i]:.6g}. Of how many samples is the mean of all gradients, if
                    each is of {batch}?""")
            values = {sentence: found[i] for sentence, found in known.items()}
            compare(f"rank {rank}'s {what}", float(got[i]), want[i], values, rtol=1e-5)


# %% mistake: the small norms of one rank
# > Only this rank's small gradients count in it.
# ~ dist.all_reduce(squares) => squares *= dist.get_world_size()
# %% mistake: squares the mean of the norms
# > The mean norm was squared, instead of a mean of squares.
# ~ square().sum((1, 2))  # (steps,) => norm(dim=2).sum(1)
# ~ squares / many => (squares / many).square()
# %% mistake: the large norm of one rank
# > The mean gradient is that of this rank alone.
# ~ dist.all_reduce(total) => total *= dist.get_world_size()
# %% mistake: no rank asks the others
# > No other rank's gradients are in it.
# ~ dist.get_world_size() * gradients => gradients
# - dist.all_reduce(total)
# - dist.all_reduce(squares)
# %% mistake: a mean over ranks of the large norm
# > A mean over ranks of |mean gradient|² is not that of the whole.
# ~ all_reduce(total) => all_reduce(big := (total / gradients.size(1)).square().sum(1))
# ~ (total / many).square().sum(1) => big / dist.get_world_size()
# %% mistake: takes the mean gradient for G
# > This is the squared norm of the mean gradient, whose noise is still in it.
# ~ small.mean() - noise / batch => big.mean()
# %% mistake: a mean of the steps' ratios
# > This is a mean of the steps' ratios.
# ~ ).mean() => )
# ~ small.mean() => small
# - return signal.item(), noise.item(), (noise / signal).item()
# + return tuple(x.mean().item() for x in (signal, noise, noise / signal))
# %% mistake: forgets that the gradients were accumulated
# > The large batch has W k times as many samples as a small one.
# ~ many * => dist.get_world_size() *
