"""What a schedule of ``sums`` costs, by the α–β model.

A message of b bytes takes α + b / B seconds, where α is the time that even the shortest
message takes, and B the bandwidth. All messages of a step travel at once, so a step
takes as long as its longest message. Adding numbers up counts as free.

Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005 (they write β for 1 / B).
"""

from typing import NamedTuple

from allranks.topics.collectives.sums import FORMULAS, Steps, schedule

Message = tuple[int, int, list[int], str, int]  # source, target, chunks, op, bytes


class Cost(NamedTuple):
    """A cost of ``steps * alpha + share * n / bandwidth`` seconds; n as in FORMULAS."""

    steps: int
    share: float  # the part of n that cannot travel at the same time


def messages(steps: Steps, sizes: list[int]) -> list[list[Message]]:
    """Put the chunks that go from one rank to another in a step into one message.

    Args:
        steps: as ``sums.schedule`` returns them.
        sizes: of the W chunks, in bytes; in all_to_all, of each rank's W chunks.

    >>> messages(schedule("broadcast", "tree", 2), [4, 2])
    [[(0, 1, [0, 1], 'copy', 6)]]
    """
    found = []
    for step in steps:
        chunks, ops = {}, {}
        for source, target, chunk, op in step:
            chunks.setdefault((source, target), []).append(chunk)
            ops[source, target] = op
        found.append(
            [
                (*pair, those, ops[pair], sum(sizes[c % len(sizes)] for c in those))
                for pair, those in chunks.items()
            ]
        )
    return found


def seconds(plan: list[list[Message]], alpha: float, bandwidth: float) -> float:
    """Add up the seconds of all steps, each as long as its longest message.

    Args:
        plan: the messages of each step.
        alpha: seconds per message.
        bandwidth: bytes per second and link.
    """
    return sum(alpha + max(m[4] for m in step) / bandwidth for step in plan)


def waiting(step: list[Message], world_size: int) -> list[int]:
    """Return the ranks that neither send nor receive in a step: they wait for its end.

    >>> waiting(messages(schedule("all_reduce", "naive", 4), [1] * 4)[0], 4)
    [2, 3]
    """
    busy = {rank for message in step for rank in message[:2]}
    return [rank for rank in range(world_size) if rank not in busy]


def wait_share(
    plan: list[list[Message]], world_size: int, alpha: float, bandwidth: float
) -> float:
    """Return the part of all ranks' time in which they wait, from 0 to 1.

    >>> plan = messages(schedule("all_reduce", "naive", 4), [1] * 4)
    >>> wait_share(plan, 4, alpha=1.0, bandwidth=1.0)
    0.5
    """
    total = seconds(plan, alpha, bandwidth)
    times = [len(waiting(s, world_size)) * seconds([s], alpha, bandwidth) for s in plan]
    return sum(times) / (world_size * total) if total else 0.0


def sent(plan: list[list[Message]], world_size: int) -> list[list[int]]:
    """Count the bytes that each rank (row) sends to each other rank (column).

    >>> sent(messages(schedule("all_reduce", "ring", 2), [4, 2]), 2)
    [[0, 6], [6, 0]]
    """
    links = [[0] * world_size for _ in range(world_size)]
    for source, target, _, _, num_bytes in (m for step in plan for m in step):
        links[source][target] += num_bytes
    return links


def cost(collective: str, algorithm: str, world_size: int) -> Cost:
    """Return what an algorithm costs for any n, α and B, as long as W divides n.

    >>> cost("all_reduce", "ring", 4), cost("all_reduce", "tree", 4)
    (Cost(steps=6, share=1.5), Cost(steps=4, share=4.0))
    """
    plan = messages(schedule(collective, algorithm, world_size), [1] * world_size)
    chunks = sum(max(m[4] for m in step) for step in plan)
    return Cost(len(plan), chunks / world_size)


def fastest(
    collective: str, world_size: int, alpha: float, bandwidth: float
) -> list[tuple[str, float]]:
    """List the algorithms that are fastest for some n, with the bytes they begin at.

    An algorithm's time grows with n along a straight line, so the fastest ones form the
    lower envelope of a few lines: for small n it pays to take fewer steps, for large n
    to send fewer bytes.

    Args:
        collective: a key of ``FORMULAS``.
        world_size: number of ranks.
        alpha: seconds per message.
        bandwidth: bytes per second and link.

    >>> [(name, round(n)) for name, n in fastest("all_reduce", 4, 10e-6, 1e9)]
    [('tree', 0), ('ring', 8000)]
    """
    lines = []
    for name in FORMULAS[collective]:
        steps, share = cost(collective, name, world_size)
        lines.append((steps * alpha, share / bandwidth, name))
    # For n near 0 latency decides. From there, go to the flatter line that the current
    # one meets first; of several that meet there, the flattest.
    now = min(lines, key=lambda line: line[:2])
    found = [(now[2], 0.0)]
    while later := [line for line in lines if line[1] < now[1]]:
        meets = [((b[0] - now[0]) / (now[1] - b[1]), b[1]) for b in later]
        best = min(range(len(later)), key=meets.__getitem__)
        now = later[best]
        found.append((now[2], meets[best][0]))
    return found
