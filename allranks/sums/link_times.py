"""What a collective takes on a link: the schedules that backends usually run.

n counts as in ``collectives.FORMULAS``: bytes of the whole buffer, which a rank holds
after all_gather, and before any other collective.
"""

from math import ceil, log2

RINGS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}
TREES = {"broadcast": 1, "reduce": 1, "barrier": 2}
NAIVE = ("gather", "scatter")


def seconds(
    collective: str, num_bytes: int, world_size: int, alpha: float, bandwidth: float
) -> float:
    """Return how long it takes after the last rank has come.

    Args:
        collective: a key of ``RINGS`` or ``TREES``, or one of ``NAIVE``, in which one
            rank sends or receives all messages.
        num_bytes: n.
        world_size: number of ranks.
        alpha: seconds per message.
        bandwidth: bytes per second and link.
    Raises:
        KeyError: if there is no such collective.

    >>> seconds("all_reduce", 4_000_000, 4, alpha=0.001, bandwidth=1e9)
    0.012
    >>> seconds("barrier", 0, 4, alpha=0.001, bandwidth=1e9)
    0.004
    """
    if world_size == 1:
        return 0.0
    if collective in RINGS or collective in NAIVE:
        steps = RINGS.get(collective, 1) * (world_size - 1)
        return steps * (alpha + num_bytes / world_size / bandwidth)
    return TREES[collective] * ceil(log2(world_size)) * (alpha + num_bytes / bandwidth)
