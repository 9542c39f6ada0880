"""The outer step of DiLoCo.

Ranks: 1, 2, 4
Minutes: 15

All ranks began with the same weights, `start`. Then each has taken some steps alone, so
their `weights` (a list of parameters) have drifted apart. Now do what DiLoCo does, in
place, on every rank:

- The outer gradient of a weight is what it was at the start minus the mean over the
  ranks of what it is now.
- With it, take one step of SGD with Nesterov's momentum from the start, as
  `torch.optim.SGD(nesterov=True)` does; `velocity` is its momentum buffer, of zeros
  before the first round.
- `start` and `weights` both hold the result: the next round begins there.

`start` and `velocity` are lists of float32 tensors. The weights may be bfloat16: then
round only at the end, and compute the mean in float32.

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


def stepped(start, velocity, mean, lr, momentum, nesterov=True, sign=1):
    """Return start and velocity after an outer step."""
    g = sign * (start - mean)
    velocity = momentum * velocity + g
    return start - lr * (g + momentum * velocity if nesterov else velocity), velocity


def check(answer, case):
    for name, (shape, dtype, rounds, lr, momentum) in case.each(CASES):
        seed = dice(len(name))
        begun = [torch.randn(s, generator=seed).to(dtype) for s in (shape, (2,))]
        start = [b.float() for b in begun]
        velocity = [torch.zeros_like(s) for s in start]
        weights = [nn.Parameter(b.clone()) for b in begun]
        known = [(s.clone(), v.clone()) for s, v in zip(start, velocity)]
        for number in range(1, rounds + 1):
            drifted = []  # by rank
            for r in range(world_size):
                moves = [torch.randn(s.shape, generator=seed) for s in start]
                pairs = zip([s for s, _ in known], moves)
                drifted.append([(s + (0.1 + 0.1 * r) * m).to(dtype) for s, m in pairs])
            with torch.no_grad():
                for weight, value in zip(weights, drifted[rank]):
                    weight.copy_(value)
            answer(weights, start, velocity, lr, momentum)
            for i, (weight, s, v) in enumerate(zip(weights, start, velocity)):
                every = [values[i] for values in drifted]
                at, task = f"[{i}] after round {number}", (lr, momentum)
                known[i] = judge(at, weight, s, v, every, *known[i], *task)


def judge(at, weight, start, velocity, every, old, old_v, lr, momentum):
    """Compare all that the step leaves; return what start and velocity should be."""
    sums, rough = sum(w.float() for w in every), sum(every[1:], every[0])
    mean, own = sums / world_size, every[rank]

    def step(mean, **how):
        return stepped(old, old_v, mean, lr, momentum, **how)

    want, want_v = step(mean)
    compare(f"start{at}", start, want, {
        "This is the mean of the weights; the outer step is missing.": mean,
        "It holds what it held before.": old,
        "This goes along the velocity, without Nesterov's look ahead.":
            step(mean, nesterov=False)[0],
        "This goes the other way: the gradient has the wrong sign.":
            step(mean, sign=-1)[0],
        "This is the step of its own weights, not of the mean.": step(own.float())[0],
        "The weights were summed, and not averaged.": step(sums)[0],
        "The mean was rounded to bfloat16 on the way.":
            step((rough / world_size).float())[0],
        "This uses the velocity of the round before.":
            old - lr * (old - mean + momentum * old_v),
    }, 1e-4, 1e-5)  # fmt: skip
    compare(f"velocity{at}", velocity, want_v, {
        "It is what it was before.": old_v,
        "The learning rate does not belong into it.": lr * want_v,
    }, 1e-4, 1e-5)  # fmt: skip
    near = (1e-2, 1e-2) if weight.dtype == torch.bfloat16 else (1e-4, 1e-5)
    compare(f"weights{at}", weight.detach(), want.to(weight.dtype), {
        "This is the mean of the weights.": mean.to(weight.dtype),
        "These are the weights that the rank came with.": own,
    }, *near)  # fmt: skip
    return want, want_v


# %% right: averages the differences, all in one message, and lets torch step
@torch.no_grad()
def ex8_4(weights, start, velocity, lr, momentum):
    pairs = list(zip(start, weights, strict=True))
    flat = torch.cat([(s - w.float()).flatten() for s, w in pairs])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    pieces = flat.split([s.numel() for s in start])
    nesterov = momentum > 0
    outer = torch.optim.SGD(start, lr, momentum, nesterov=nesterov)
    for s, piece, v in zip(start, pieces, velocity):
        s.grad = piece.view_as(s)
        outer.state[s]["momentum_buffer"] = v
    if not nesterov:
        for s, v in zip(start, velocity):
            v.copy_(s.grad)
    outer.step()
    for s, w in pairs:
        s.grad = None
        w.copy_(s)


# %% wrong: averages the weights, as local SGD does
# ~ lr * (g + momentum * v) => g
# %% wrong: plain momentum
# ~ (g + momentum * v) => v
# %% wrong: the gradient's sign
# ~ begun - mean / dist.get_world_size() => mean / dist.get_world_size() - begun
# %% wrong: start stays where it was
# - begun.sub_(lr * (g + momentum * v))
# ~ begun => begun - lr * (g + momentum * v)
# %% wrong: each rank steps with its own difference
# ~ mean / dist.get_world_size() => weight
# %% wrong: averages in bfloat16
# ~ mean = weight.to(torch.float32, copy=True) => mean = weight.clone()
# %% wrong: sums, and forgets to divide
# ~ mean / dist.get_world_size() => mean
