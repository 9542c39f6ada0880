"""The outer step of DiLoCo.

Chapter: 8
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
import torch
import torch.distributed as dist


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
from allranks.exercises.oracle import compare

CASES = {
    "one round": ((7,), torch.float32, 1, 0.7, 0.9),
    "three rounds": ((3, 4), torch.float32, 3, 0.7, 0.9),
    "no momentum": ((5,), torch.float32, 2, 1.0, 0.0),
    "weights in bfloat16": ((2, 6), torch.bfloat16, 2, 0.7, 0.9),
}
SHAPE = (2,)


def stepped(start, velocity, mean, lr, momentum, nesterov=True, sign=1):
    """Return start and velocity after an outer step."""
    g = sign * (start - mean)
    velocity = momentum * velocity + g
    return start - lr * (g + momentum * velocity if nesterov else velocity), velocity


def check(answer, case):
    for name, (shape, dtype, rounds, lr, momentum) in CASES.items():
        case(name)
        dice = torch.Generator().manual_seed(len(name))
        begun = [torch.randn(s, generator=dice).to(dtype) for s in (shape, SHAPE)]
        start = [b.float() for b in begun]
        velocity = [torch.zeros_like(s) for s in start]
        weights = [torch.nn.Parameter(b.clone()) for b in begun]
        known = [s.clone() for s in start], [v.clone() for v in velocity]
        for number in range(1, rounds + 1):
            moves = [
                [0.1 * (1 + r) * torch.randn(s.shape, generator=dice) for s in start]
                for r in range(world_size)
            ]
            drifted = [
                [(s + m).to(dtype) for s, m in zip(known[0], each)] for each in moves
            ]
            with torch.no_grad():
                for weight, value in zip(weights, drifted[rank]):
                    weight.copy_(value)
            answer(weights, start, velocity, lr, momentum)
            play = zip(weights, start, velocity, *known, *drifted)
            after = [], []
            for i, (weight, s, v, old, old_v, *all_) in enumerate(play):
                everyone = [d.float() for d in all_]
                mean = sum(everyone) / world_size
                task = old, old_v, mean, lr, momentum
                want, want_v = stepped(*task)
                after[0].append(want), after[1].append(want_v)
                rough = all_[0].clone()
                for one in all_[1:]:
                    rough = rough + one
                other = {
                    "This is the mean of the weights; the outer step is missing.": mean,
                    "It holds what it held before.": old,
                    "This goes along the velocity, without Nesterov's look ahead.": (
                        stepped(*task, nesterov=False)[0]
                    ),
                    "This goes the other way: the gradient has the wrong sign.": (
                        stepped(*task, sign=-1)[0]
                    ),
                    "This is the step of its own weights, not of the mean.": (
                        stepped(old, old_v, everyone[rank], lr, momentum)[0]
                    ),
                    "The weights were summed, and not averaged.": (
                        stepped(old, old_v, sum(everyone), lr, momentum)[0]
                    ),
                    "The mean was rounded to bfloat16 on the way.": (
                        stepped(
                            old, old_v, (rough / world_size).float(), lr, momentum
                        )[0]
                    ),
                    "This uses the velocity of the round before.": (
                        old - lr * (old - mean + momentum * old_v)
                    ),
                }  # fmt: skip
                at = f"[{i}] after round {number}"
                compare(f"start{at}", s, want, other, 1e-4, 1e-5)
                compare(f"velocity{at}", v, want_v, {
                    "It is what it was before.": old_v,
                    "The learning rate does not belong into it.": lr * want_v,
                }, 1e-4, 1e-5)  # fmt: skip
                compare(
                    f"weights{at}",
                    weight.detach(),
                    want.to(dtype),
                    {
                        "This is the mean of the weights.": mean.to(dtype),
                        "These are the weights that the rank came with.": all_[rank],
                    },
                    *((1e-2, 1e-2) if dtype == torch.bfloat16 else (1e-4, 1e-5)),
                )
            known = after


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
# - for weight, begun, v in zip(weights, start, velocity, strict=True):
# + for weight, begun in zip(weights, start, strict=True):
# - g = begun - mean / dist.get_world_size()
# - v.mul_(momentum).add_(g)
# - begun.sub_(lr * (g + momentum * v))
# + begun.copy_(mean / dist.get_world_size())
# %% wrong: plain momentum
# - g = begun - mean / dist.get_world_size()
# - v.mul_(momentum).add_(g)
# - begun.sub_(lr * (g + momentum * v))
# + v.mul_(momentum).add_(begun - mean / dist.get_world_size())
# + begun.sub_(lr * v)
# %% wrong: the gradient's sign
# - g = begun - mean / dist.get_world_size()
# + g = mean / dist.get_world_size() - begun
# %% wrong: start stays where it was
# - begun.sub_(lr * (g + momentum * v))
# - weight.copy_(begun)
# + weight.copy_(begun - lr * (g + momentum * v))
# %% wrong: each rank steps with its own difference
# - mean = weight.to(torch.float32, copy=True)
# - dist.all_reduce(mean)
# - g = begun - mean / dist.get_world_size()
# + g = begun - weight
# %% wrong: averages in bfloat16
# - mean = weight.to(torch.float32, copy=True)
# - dist.all_reduce(mean)
# - g = begun - mean / dist.get_world_size()
# + dist.all_reduce(weight)
# + weight /= dist.get_world_size()
# + g = begun - weight
# %% wrong: sums, and forgets to divide
# - mean = weight.to(torch.float32, copy=True)
# - dist.all_reduce(mean)
# - g = begun - mean / dist.get_world_size()
# + total = weight.to(torch.float32, copy=True)
# + dist.all_reduce(total)
# + g = begun - total
