"""Links by name: what a message on them costs, and who says so.

The latencies of the first three are what NCCL's own model assumes for a step of a ring
that moves large messages: ``hwLatencies``, Ring, Simple in src/graph/tuning.cc of
release 2.30.7, June 2026 (https://github.com/NVIDIA/nccl at commit 73cf1122). They are
longer than the time that a wire needs, because a step has to be noticed by a GPU.
Bandwidths are those of the data sheet, in one direction. No data sheet states what a
message costs through a kernel's TCP stack, so the latencies of the other three are
round numbers of ours.
"""

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


def named(alpha_us: float, gb_per_s: float) -> str:
    """Return the label of the link with these numbers, or "" if none has them.

    >>> named(14, 50), named(14, 51)
    ('400 Gb/s InfiniBand', '')
    """
    for label, *numbers in LINKS.values():
        if numbers == [alpha_us, gb_per_s]:
            return label
    return ""
