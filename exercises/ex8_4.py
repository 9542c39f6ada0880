"""The outer step of DiLoCo.

Ranks: 1, 2, 4
Minutes: 15

In DiLoCo, each rank trains alone for some steps, and then all ranks agree on common
weights in an outer step. Write this outer step. `start` holds the weights that all
ranks began with. `weights` is the list of this rank's parameters after its own steps.
On every rank, change both in place:

- The outer gradient of a weight is its value in `start`, minus the mean of its values
  in all ranks' `weights`.
- With this gradient, take one step of SGD with Nesterov momentum from `start`, as
  `torch.optim.SGD(nesterov=True)` does. `velocity` is the momentum buffer, which holds
  zeros before the first round.
- Both `start` and `weights` then hold the result, because the next round begins there.

`start` and `velocity` are lists of float32 tensors. The weights may be bfloat16. If
they are, compute the mean in float32, and round only at the end.

Hint 1: In which direction does the outer gradient point, if all ranks have moved to
smaller weights?
Hint 2: Momentum first: v ← µ v + g. Plain momentum then goes along v. Nesterov's goes
along g + µ v, as if it looked one step ahead.
Hint 3: Inside `torch.no_grad()`, for each weight: `mean = weight.float()`,
all_reduce, divide; `g = begun - mean`; `v.mul_(momentum).add_(g)`;
`begun.sub_(lr * (g + momentum * v))`; `weight.copy_(begun)`.
"""


# %% solution
@torch.no_grad()
def ex8_4(weights, start, velocity, lr, momentum):
    """Replace weights and start by the result of one outer step, in place."""
    for weight, begun, v in zip(weights, start, velocity, strict=True):
        mean = weight.to(torch.float32, copy=True)
        dist.all_reduce(mean)
        g = begun - mean / dist.get_world_size()
        v.mul_(momentum).add_(g)
        begun.sub_(lr * (g + momentum * v))
        weight.copy_(begun)


# %% check
CASES = {
    "one round": ((7,), torch.float32, 1, 0.7, 0.9),
    "three rounds": ((3, 4), torch.float32, 3, 0.7, 0.9),
    "no momentum": ((5,), torch.float32, 2, 1.0, 0.0),
    "weights in bfloat16": ((2, 6), torch.bfloat16, 2, 0.7, 0.9),
}


def outcome(answer, weights, start, velocity, lr, momentum):
    """Return weights, start and velocity after an outer step."""
    weights = [nn.Parameter(w.clone()) for w in weights]
    start, velocity = [s.clone() for s in start], [v.clone() for v in velocity]
    answer(weights, start, velocity, lr, momentum)
    return [w.detach() for w in weights], start, velocity


def check(answer, case):
    for name, (shape, dtype, rounds, lr, momentum) in case.each(CASES):
        seed = dice(len(name))
        begun = [torch.randn(s, generator=seed).to(dtype) for s in (shape, (2,))]
        start = [b.float() for b in begun]
        velocity = [torch.zeros_like(s) for s in start]
        for number in range(1, rounds + 1):
            drifted = []  # by rank
            for r in range(world_size):
                moves = [torch.randn(s.shape, generator=seed) for s in start]
                moved = [s + (0.1 + 0.1 * r) * m for s, m in zip(start, moves)]
                drifted.append([w.to(dtype) for w in moved])
            task = drifted[rank], start, velocity, lr, momentum
            got = outcome(answer, *task)
            want, known = reference(got, outcome, *task)
            for i in range(2):
                at, (weight, begun, v) = f"[{i}] after round {number}", want
                values = {sentence: s[i] for sentence, (_, s, _) in known.items()}
                values["It holds what it held before."] = start[i]
                compare(f"start{at}", got[1][i], begun[i], values, 1e-4, 1e-5)
                compare(f"velocity{at}", got[2][i], v[i], {
                    "It is what it was before.": velocity[i],
                    "The learning rate does not belong into it.": lr * v[i],
                }, 1e-4, 1e-5)  # fmt: skip
                mean = sum(weights[i].float() for weights in drifted) / world_size
                near = (1e-2, 1e-2) if dtype == torch.bfloat16 else (1e-4, 1e-5)
                compare(f"weights{at}", got[0][i], weight[i], {
                    "This is the mean of the weights.": mean.to(dtype),
                    "These are the weights that the rank came with.": drifted[rank][i],
                }, *near)  # fmt: skip
            _, start, velocity = want


# %% mistake: averages the weights, as local SGD does
# > This is the mean of the weights; the outer step is missing.
# ~ lr * (g + momentum * v) => g
# %% mistake: plain momentum
# > This goes along the velocity, without Nesterov's look ahead.
# ~ (g + momentum * v) => v
# %% mistake: the gradient's sign
# > This goes the other way: the gradient has the wrong sign.
# ~ begun - mean / dist.get_world_size() => mean / dist.get_world_size() - begun
# %% mistake: each rank steps with its own difference
# > This is the step of its own weights, not of the mean.
# ~ mean / dist.get_world_size() => weight
# %% mistake: sums, and forgets to divide
# > The weights were summed, and not averaged.
# ~ mean / dist.get_world_size() => mean
# %% mistake: averages in bfloat16
# > The mean was rounded to bfloat16 on the way.
# ~ mean = weight.to(torch.float32, copy=True) => mean = weight.clone()
