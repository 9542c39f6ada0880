"""Collectives, step by step: who sends which chunk to whom, and what it costs.

A tensor of n numbers is cut into W chunks that are as even as possible. A schedule is a
list of steps, and a step is a list of transfers, in which a rank sends to at most one
rank and receives from at most one. What a rank holds is written as {chunk: the ranks
whose numbers are summed in it}. In all_to_all, chunk ``s * W + d`` goes from s to d.
All functions are pure.

Sources:
    Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005 (cost model, trees, Bruck);
    Patarasuk, Yuan, JPDC 69(2), 2009 (the ring).
"""

from typing import NamedTuple

from allranks.base.units import whole

# By collective and algorithm: the time, if W divides n. Here n counts the bytes that a
# rank holds before the collective (in all_gather: after it).
FORMULAS = {
    "all_reduce": {
        "ring": "2 (W − 1) (α + n / (W B))",
        "tree": "2 ⌈log₂ W⌉ (α + n / B)",
        "naive": "2 (W − 1) (α + n / B)",
    },
    "broadcast": {
        "tree": "⌈log₂ W⌉ (α + n / B)",
        "chain": "2 (W − 1) (α + n / (W B))",
        "naive": "(W − 1) (α + n / B)",
    },
    "reduce_scatter": {
        "ring": "(W − 1) (α + n / (W B))",
        "naive": "(W − 1) (2 α + n / B + n / (W B))",
    },
    "all_gather": {
        "ring": "(W − 1) (α + n / (W B))",
        "bruck": "⌈log₂ W⌉ α + (W − 1) n / (W B)",
        "naive": "(W − 1) (2 α + n / B + n / (W B))",
    },
    "all_to_all": {
        "pairwise": "(W − 1) (α + n / (W B))",
        "bruck": "⌈log₂ W⌉ α + k n / (W B), k chunks passed on",
    },
}


class Transfer(NamedTuple):
    """One chunk on its way from one rank to another."""

    source: int
    target: int
    chunk: int
    op: str  # "copy", "reduce" (add to what is there) or "move" (the source forgets)


Steps = list[list[Transfer]]
Held = list[dict[int, frozenset[int]]]  # by rank


def chunk_sizes(numbers: int, world_size: int) -> list[int]:
    """Return the sizes of W chunks of n numbers, cut as ``tensor_split`` does.

    >>> chunk_sizes(10, 4)
    [3, 3, 2, 2]
    """
    share, rest = divmod(numbers, world_size)
    return [share + 1 if chunk < rest else share for chunk in range(world_size)]


def schedule(collective: str, algorithm: str, world_size: int) -> Steps:
    """List who sends what to whom, step by step; rank 0 is the root if there is one.

    Args:
        collective, algorithm: keys of ``FORMULAS``.
        world_size: number of ranks.
    Raises:
        ValueError: if there is no such collective or algorithm, or no rank.

    >>> schedule("all_reduce", "naive", 2)[0][:1]
    [Transfer(source=1, target=0, chunk=0, op='reduce')]
    """
    if collective not in FORMULAS:
        raise ValueError(f"no collective {collective}: there are {', '.join(FORMULAS)}")
    if algorithm not in FORMULAS[collective]:
        known = ", ".join(FORMULAS[collective])
        raise ValueError(f"{collective} has no {algorithm} here: it has {known}")
    size = whole("world_size", world_size, low=1)
    ranks, everything, others = range(size), range(size), range(1, size)
    doublings = [1 << k for k in range((size - 1).bit_length())]
    match collective, algorithm:
        case "all_to_all", "pairwise":
            return [
                [Transfer(s, (s + d) % size, s * size + (s + d) % size, "move")
                 for s in ranks] for d in others
            ]  # fmt: skip
        case "all_to_all", "bruck":  # s -> s + d takes a hop per set bit of d
            return [
                [Transfer((s + d % hop) % size, (s + d % hop + hop) % size,
                          s * size + (s + d) % size, "move")
                 for s in ranks for d in others if d & hop] for hop in doublings
            ]  # fmt: skip
        case "all_gather", "bruck":  # send all that is held, twice as far each time
            return [
                [Transfer(r, (r - hop) % size, (r + i) % size, "copy")
                 for r in ranks for i in range(min(hop, size - hop))]
                for hop in doublings
            ]  # fmt: skip
        case "broadcast", "chain":  # chunk after chunk, from neighbor to neighbor
            return [
                [Transfer(r, r + 1, t - r, "copy")
                 for r in range(size - 1) if 0 <= t - r < size]
                for t in range(2 * size - 2)
            ]  # fmt: skip
    ring = [
        [
            [Transfer(r, (r + 1) % size, (r - t - first) % size, op) for r in ranks]
            for t in range(size - 1)
        ]
        for op, first in (("reduce", 1), ("copy", 0))
    ]
    pairs = [[(r, r - hop) for r in range(hop, size, 2 * hop)] for hop in doublings]
    tree_up = [[Transfer(s, t, c, "reduce") for s, t in pair for c in everything]
               for pair in pairs]  # fmt: skip
    up = [[Transfer(r, 0, c, "reduce") for c in everything] for r in others]
    tree_down, down = (
        [[Transfer(t, s, c, "copy") for s, t, c, _ in step] for step in steps]
        for steps in (tree_up[::-1], up)
    )
    return {
        "all_reduce": {"ring": ring[0] + ring[1], "tree": tree_up + tree_down,
                       "naive": up + down},
        "broadcast": {"tree": tree_down, "naive": down},
        "reduce_scatter": {
            "ring": ring[0],
            "naive": up + [[Transfer(0, r, r, "copy")] for r in others],
        },
        "all_gather": {
            "ring": ring[1],
            "naive": [[Transfer(r, 0, r, "copy")] for r in others] + down,
        },
    }[collective][algorithm]  # fmt: skip


def before(collective: str, world_size: int) -> Held:
    """Return what each rank holds before the collective."""
    held = []
    for rank in range(world_size):
        chunks = list(range(world_size))
        if collective == "all_to_all":
            chunks = [rank * world_size + chunk for chunk in chunks]
        elif collective == "all_gather":
            chunks = [rank]
        elif collective == "broadcast" and rank:
            chunks = []
        held.append(dict.fromkeys(chunks, frozenset([rank])))
    return held


def after(collective: str, world_size: int) -> Held:
    """Return what the definition of the collective promises each rank."""
    ranks = range(world_size)
    if collective == "all_to_all":
        return [{s * world_size + r: frozenset([s]) for s in ranks} for r in ranks]
    if collective == "all_gather":
        return [{c: frozenset([c]) for c in ranks} for _ in ranks]
    who = frozenset([0] if collective == "broadcast" else ranks)
    part = collective == "reduce_scatter"
    return [dict.fromkeys([r] if part else ranks, who) for r in ranks]


def simulate(steps: Steps, held: Held) -> list[Held]:
    """Apply a schedule, and return who holds what before it and after each step.

    Args:
        steps: as ``schedule`` returns them.
        held: what each rank holds at first, as ``before`` returns it.

    Raises:
        ValueError: if a rank sends what it does not hold, or adds a number twice.
    """
    states = [held]
    for number, step in enumerate(steps):
        old, new = states[-1], [dict(mine) for mine in states[-1]]
        # All messages of a step leave at once: each sends what its rank had before.
        for source, target, chunk, op in step:
            if chunk not in old[source]:
                raise ValueError(f"step {number}: rank {source} has no chunk {chunk}")
            value = old[source][chunk]
            if op == "reduce":
                if value & new[target][chunk]:
                    raise ValueError(f"step {number}: rank {target} adds numbers twice")
                value |= new[target][chunk]
            if op == "move":
                del new[source][chunk]
            new[target][chunk] = value
        states.append(new)
    return states
