"""Links by name: what a message or a collective costs on them, and who says so.

The latencies of the first three are what NCCL's own model assumes for a step of a ring
that moves large messages: ``hwLatencies``, Ring, Simple in src/graph/tuning.cc of
release 2.30.7, June 2026 (https://github.com/NVIDIA/nccl at commit 73cf1122). They are
longer than the time that a wire needs, because a step has to be noticed by a GPU.
Bandwidths are those of the data sheet, in one direction. No data sheet states what a
message costs through a kernel's TCP stack, so the latencies of the other three are
round numbers of ours.
"""

from math import ceil, log2
from typing import NamedTuple


class Link(NamedTuple):
    """A link, on which b bytes take ``alpha_us / 1e6 + b / gb_per_s / 1e9`` seconds."""

    label: str
    alpha_us: float
    gb_per_s: float


LINKS = {
    "nvlink4": Link("NVLink 4", 3.4, 450),
    "pcie5": Link("PCIe 5 x16", 5.7, 63),
    "ib400": Link("400 Gb/s InfiniBand", 14.0, 50),
    "eth25": Link("25 Gb/s Ethernet", 30, 3.125),
    "eth1": Link("1 Gb/s Ethernet", 50, 0.125),
    "home": Link("a home network", 2000, 0.025),
}
# The schedules that backends usually run: how many rings or trees make a collective.
RINGS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}
TREES = {"broadcast": 1, "reduce": 1, "barrier": 2}
NAIVE = ("gather", "scatter")


def named(alpha_us: float, gb_per_s: float) -> str:
    """Return the label of the link with these numbers, or "" if none has them.

    >>> named(14, 50), named(14, 51)
    ('400 Gb/s InfiniBand', '')
    """
    for label, *numbers in LINKS.values():
        if numbers == [alpha_us, gb_per_s]:
            return label
    return ""


def seconds(
    collective: str, num_bytes: int, world_size: int, alpha: float, bandwidth: float
) -> float:
    """Return how long a collective takes after the last rank has come.

    Args:
        collective: a key of ``RINGS`` or ``TREES``, or one of ``NAIVE``, in which one
            rank sends or receives all messages.
        num_bytes: n, as ``collectives.sums.FORMULAS`` counts it: of the whole buffer,
            which a rank has after all_gather, and before any other collective.
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
    # A message of a ring, or to or from the root, is n / W; one of a tree is all n.
    if collective in RINGS or collective in NAIVE:
        steps = RINGS.get(collective, 1) * (world_size - 1)
        return steps * (alpha + num_bytes / world_size / bandwidth)
    return TREES[collective] * ceil(log2(world_size)) * (alpha + num_bytes / bandwidth)
