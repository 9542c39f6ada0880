"""Seeds that never meet.

Ranks: 1
Minutes: 8

At the start of each epoch, every worker of every rank calls `torch.manual_seed` with
the number that you return. `seed` is the seed of the whole run. `seed`, `epoch` and
`rank` are below 2¹⁶, and `worker` is below 2⁸. Return an integer from 0 to 2⁶³ − 1, so
that

- two calls with different arguments never get the same number,
- the same arguments get the same number in every process and in every run.

Leave the global random generators alone.

Hint 1: If you add rank and worker, who else gets the seed of worker 1 of rank 0?
Hint 2: A clock writes hours, minutes and seconds as one number of seconds, and nothing
gets lost. What does it multiply them by, and why does that suffice?
Hint 3: `(seed * 2**16 + epoch) * 2**16 + rank`, and so on for the worker.
"""


# %% solution
def ex9_2(seed, epoch, rank, worker):
    """Return the seed of this worker of this rank in this epoch."""
    return ((seed * 2**16 + epoch) * 2**16 + rank) * 2**8 + worker


# %% check
import itertools

NAMES = "seed", "epoch", "rank", "worker"
CASES = {
    "two ranks with two workers": [range(1), range(1), range(2), range(2)],
    "several epochs": [range(1), range(5), range(3), range(3)],
    "several runs": [range(4), range(4), range(3), range(3)],
    "many ranks and workers": [range(2), range(3), range(40), range(20)],
    "the largest numbers": [[0, 1, 255, 256, 2**16 - 1]] * 3 + [[0, 1, 254, 255]],
}


def words(args):
    return " ".join(f"{name} {value}" for name, value in zip(NAMES, args))


def call(answer, args):
    """Return the number for some arguments, if it is one that torch takes."""
    with undrawn():
        found = answer(*args)
    try:
        number = int(found)
    except (TypeError, ValueError):
        raise Wrong(f"""for {words(args)} it returned {found!r:.60}, not a
            number.""") from None
    if not 0 <= number < 2**63:
        why = "negative" if number < 0 else "not below 2⁶³"
        raise Wrong(f"for {words(args)} it returned {number}, which is {why}.")
    return number


def check(answer, case):
    for name, ranges in case.each(CASES):
        owners = {}
        for args in itertools.product(*ranges):
            number = call(answer, args)
            if number in owners:
                raise Wrong(met(owners[number], args, number))
            owners[number] = args
        for number, args in itertools.islice(owners.items(), 50):
            if (again := call(answer, args)) != number:
                raise Wrong(f"""{words(args)} gets {number}, and {again} when it asks
                    again: a run could not be repeated.""")


def met(one, other, number):
    """Say who got the same number, and what that tells."""
    differ = [n for n, a, b in zip(NAMES, one, other, strict=True) if a != b]
    text = f"({words(one)}) and ({words(other)}) both get {number}."
    if len(differ) == 1:
        return f"{text} The {differ[0]} has no influence."
    if sum(one) == sum(other):
        return f"{text} A sum is the same if one part grows and another shrinks."
    return f"{text} The {differ[1]} has grown into the place of the {differ[0]}."
