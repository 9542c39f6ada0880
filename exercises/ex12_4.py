"""DDP, ZeRO-1, FSDP or HSDP?

Ranks: 1
Minutes: 25

You have `nodes` machines with `gpus` GPUs each. On a GPU, `memory` bytes are left for
weights, gradients and optimizer states. `units` has the number of parameters of each
unit of the model. Everything is float32, so with AdamW a parameter needs 4 bytes for
its weight, 4 for its gradient and 8 for its states. You can train in four ways:

- "DDP": each GPU has everything. The gradients are all-reduced.
- "ZeRO-1": the states are cut into one part for each GPU. Gradients are
  reduce-scattered, and the new weights are all-gathered.
- "FSDP": weights, gradients and states are cut into one part for each GPU. Weights are
  all-gathered for forward and again for backward, and gradients are reduce-scattered.
  Besides its parts, a GPU has the whole weights and gradients of one unit at a time.
- "HSDP": FSDP within each machine, so everything is cut into `gpus` parts. The machines
  are replicas: each GPU then all-reduces its part of the gradients with those GPUs of
  the other machines that have the same part.

An all_gather or reduce_scatter of D bytes among N GPUs takes D · (N − 1) / (N · B)
seconds, and an all_reduce takes twice as long. D counts all parts together. If the N
GPUs are in one machine, B is `inside`; if not, B is `across`. The all_reduces of HSDP
run at once, on the same links between the machines, so each has B = `across` / `gpus`.
Nothing overlaps.

Return `(name, seconds)` of the fastest way that fits into `memory`, or None if none
does. If two ways take equally long, take the one that comes first in the list above.

Hint 1: Three of the four ways differ in the bytes that they send. Which two are equal?
Hint 2: With Ψ parameters and W GPUs, DDP holds 16 Ψ bytes, ZeRO-1 8 Ψ + 8 Ψ / W, and
FSDP 16 Ψ / W + 8 · the largest unit. Of D = 4 Ψ bytes, DDP sends two times, FSDP three
times (W − 1) / W.
Hint 3: HSDP takes `3 * D * (gpus - 1) / gpus / inside`, and then, with D / gpus bytes
on links of across / gpus, `2 * D * (nodes - 1) / nodes / across`.
"""


# %% solution
def ex12_4(units, nodes, gpus, memory, inside, across):
    """Return the name and the seconds of the fastest way that fits, or None."""
    total, num = sum(units), nodes * gpus
    size, one_unit = 4 * total, 8 * max(units)  # bytes
    once = size * (num - 1) / num / (inside if nodes == 1 else across)
    hybrid = 3 * size * (gpus - 1) / gpus / inside
    hybrid += 2 * size * (nodes - 1) / nodes / across
    ways = {  # bytes, seconds
        "DDP": (16 * total, 2 * once),
        "ZeRO-1": (8 * total + 8 * total / num, 2 * once),
        "FSDP": (16 * total / num + one_unit, 3 * once),
        "HSDP": (16 * total / gpus + one_unit, hybrid),
    }
    fit = {name: time for name, (held, time) in ways.items() if held <= memory}
    best = min(fit, key=fit.get, default=None)
    return best and (best, fit[best])


# %% check
GB, H100, ETHERNET = 1e9, 450e9, 1.25e9  # 450 GB/s of NVLink, 10 Gbit/s
CASES = {  # units, nodes, gpus, GB, inside, across
    "a small model on one machine": ([1e8] * 4, 1, 8, 70, H100, 400e9),
    "its replicas just fit": ([1e9] * 4, 1, 8, 64, H100, 400e9),
    "they don't fit any more": ([1e9] * 4, 1, 8, 63, H100, 400e9),
    "8 billion parameters on one machine": ([2.5e8] * 32, 1, 8, 60, H100, 400e9),
    "four machines, fast links": ([2.5e8] * 32, 4, 8, 60, H100, 400e9),
    "four machines, 10 Gbit/s": ([2.5e8] * 32, 4, 8, 60, H100, ETHERNET),
    "four machines, 10 Gbit/s, smaller GPUs": ([2.5e8] * 32, 4, 8, 15, H100, ETHERNET),
    "few large units": ([2e9] * 4, 1, 8, 30, H100, 400e9),
    "70 billion parameters": ([1e9] * 70, 64, 8, 150, H100, 400e9),
    "one unit is too large": ([1e8] * 20 + [6e9], 4, 8, 48, H100, 400e9),
    "nothing fits": ([1e9] * 70, 4, 8, 40, H100, 400e9),
    "a GPU in each machine": ([2.5e8] * 8, 8, 1, 20, H100, ETHERNET),
    "one GPU": ([1e8], 1, 1, 2, H100, 400e9),
}


def check(answer, case):
    for name, (units, nodes, gpus, memory, *links) in case.each(CASES):
        given = [int(unit) for unit in units], nodes, gpus, memory * GB, *links
        with Untouched(units=given[0]):
            got = answer(*given)
        want, known = reference(got, lambda function: function(*given))
        if not same(got, want):
            why = [f" {text}" for text, found in known.items() if same(got, found)]
            text = f"it returned {show(got)}; it should be {show(want)}."
            raise Wrong(text + "".join(why[:1]))


def show(found):
    return f"({found[0]!r}, {found[1]:.4g})" if found else "None"


def same(got, want):
    """Compare names, and seconds to six digits."""
    if got is None or want is None:
        return got is want
    name, seconds = unpack(got, 2, "a pair (name, seconds), or None")
    return name == want[0] and abs(seconds - want[1]) <= 1e-6 * want[1]


# %% mistake: FSDP gathers once
# > FSDP gathers the weights twice: for forward, and for backward.
# ~ 3 * once => 2 * once
# %% mistake: takes the average unit
# > The largest unit has to fit, too.
# ~ max(units) => total / len(units)
# %% mistake: forgets the unit that computes
# > FSDP and HSDP also hold the weights and gradients of a whole unit.
# ~ 8 * max(units) => 0
# %% mistake: ZeRO-1 cuts the gradients, too
# > ZeRO-1 cuts the states only.
# ~ 8 * total + 8 * total / num => 4 * total + 12 * total / num
# %% mistake: HSDP all-reduces everything
# > In HSDP, a GPU all-reduces only its part of the gradients.
# ~ 2 * size * (nodes => 2 * gpus * size * (nodes
# %% mistake: takes what holds least
# > This is the way that holds least, not the fastest one.
# - best = min(fit, key=fit.get, default=None)
# + best = min(fit, key=lambda name: ways[name][0], default=None)
# %% mistake: HSDP cuts as FSDP does
# > HSDP cuts only within a machine.
# ~ 16 * total / gpus => 16 * total / num
# %% mistake: the link inside, always
# > A ring through several machines is as fast as the links between them.
# ~ (inside if nodes == 1 else across) => inside
# %% mistake: each all_reduce of HSDP has all links
# > The all_reduces of HSDP share the links between machines.
# ~ nodes / across => nodes / across / gpus
