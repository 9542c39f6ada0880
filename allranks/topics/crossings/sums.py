"""Where one all_reduce becomes faster than another: formulas for any number of ranks.

``collectives.costs`` counts the messages of schedules one by one, which takes long for
a thousand ranks. These are the same numbers in closed form, and a test compares both.
"""

from allranks.topics.collectives.costs import Cost


def all_reduce(world_size: int) -> dict[str, Cost]:
    """Return what each algorithm costs; halving only for a power of two of ranks.

    >>> all_reduce(4)["ring"], all_reduce(4)["tree"]
    (Cost(steps=6, share=1.5), Cost(steps=4, share=4))
    >>> list(all_reduce(6))
    ['naive', 'tree', 'ring']
    """
    others, hops = world_size - 1, (world_size - 1).bit_length()
    found = {
        "naive": Cost(2 * others, 2 * others),
        "tree": Cost(2 * hops, 2 * hops),
        "ring": Cost(2 * others, 2 * others / world_size),
    }
    if world_size == 1 << hops:
        found["halving"] = Cost(2 * hops, 2 * others / world_size)
    return found


def seconds(cost: Cost, num_bytes: float, alpha: float, bandwidth: float) -> float:
    """Return how long it takes to reduce so many bytes on links of α and B."""
    return cost.steps * alpha + cost.share * num_bytes / bandwidth


def crossing(fewer: Cost, more: Cost, alpha: float, bandwidth: float) -> float:
    """Return from how many bytes on the one with more steps is faster.

    0 if it always is. With more steps, it has to send fewer bytes.

    Args:
        fewer: what the algorithm with fewer steps costs.
        more: what the one with more steps costs.
        alpha: seconds per message.
        bandwidth: bytes per second and link.

    >>> ways = all_reduce(4)
    >>> round(crossing(ways["tree"], ways["ring"], alpha=50e-6, bandwidth=125e6))
    5000
    """
    saved = fewer.share - more.share
    return (more.steps - fewer.steps) * alpha * bandwidth / saved


def winners(
    ways: dict[str, Cost], least: int, most: int, alpha: float, bandwidth: float
) -> list[list]:
    """List the fastest algorithms for growing sizes, with the bytes they begin at.

    Args:
        ways: what each algorithm costs.
        least, most: bytes, between which sizes are looked at.
        alpha: seconds per message.
        bandwidth: bytes per second and link.

    >>> found = winners(all_reduce(6), 1000, 10**9, alpha=50e-6, bandwidth=125e6)
    >>> [(name, round(start)) for name, start in found]
    [('tree', 1000), ('ring', 5769)]
    """
    now = min(ways, key=lambda name: seconds(ways[name], least, alpha, bandwidth))
    found = [[now, least]]
    while True:
        # From there, go to the flatter line that the current one meets first.
        meets = [
            (crossing(ways[now], way, alpha, bandwidth), way.share, name)
            for name, way in ways.items()
            if way.share < ways[now].share
        ]
        start, _, now = min(meets, default=(most, 0, ""))
        if start >= most:
            return found
        found.append([now, start])
