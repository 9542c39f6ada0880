"""Answers to exercise 12.4 that the check must take or refuse."""


# %% right: one way after the other, with functions for the collectives
def ex12_4(units, nodes, gpus, memory, inside, across):
    def gather(num_bytes, num, link):
        return num_bytes * (num - 1) / (num * link)

    num_params, world_size, best = sum(units), nodes * gpus, None
    size, link = 4 * num_params, across if nodes > 1 else inside
    each = gather(size, world_size, link)
    replicas = 2 * gather(size / gpus, nodes, across / gpus)
    for name, cut, unit, seconds in [
        ("DDP", (1, 1, 1), 0, 2 * each),
        ("ZeRO-1", (1, 1, world_size), 0, 2 * each),
        ("FSDP", (world_size,) * 3, 1, 3 * each),
        ("HSDP", (gpus,) * 3, 1, 3 * gather(size, gpus, inside) + replicas),
    ]:
        held = sum(num_params * b / n for b, n in zip((4, 4, 8), cut))
        if held + unit * 8 * max(units) <= memory:
            if best is None or seconds < best[1]:
                best = name, seconds
    return best


# %% wrong: returns the name only
# ~ best and (best, fit[best]) => best
# %% wrong: returns a way that does not fit
# ~  if held <= memory} => }
# %% wrong: takes the last of equals
# ~ min(fit, => min(reversed(fit),
# %% wrong: fails where nothing fits
# ~ , default=None) => )
