"""Which links join the ranks: one everywhere, or a fast one inside each node.

>>> parse("eth1").between([0, 1])
Link(label='1 Gb/s Ethernet', alpha_us=50, gb_per_s=0.125)
>>> parse("inside=nvlink4,across=ib400,per_node=2,slower=100").between([1, 2])
Link(label='400 Gb/s InfiniBand', alpha_us=1400.0, gb_per_s=0.5)
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from allranks.topics.links.sums import LINKS, Link

VARIABLE = "ALLRANKS_LINK"  # names the network for a launched script
OWN = re.compile(r"([\d.]+)us\+([\d.]+)GB/s$")


@dataclass(frozen=True)
class Network:
    """The links between ranks.

    Attributes:
        inside: between two ranks of a node.
        across: between two nodes.
        per_node: ranks of a node; rank r is on node r // per_node.
    """

    inside: Link
    across: Link
    per_node: int = 1

    def between(self, ranks: Iterable[int]) -> Link:
        """Return the slowest link that these ranks of the job need.

        A collective among them moves at its pace, as long as it is not hierarchical.
        """
        nodes = {rank // self.per_node for rank in ranks}
        return self.inside if len(nodes) == 1 else self.across


def parse(text: str) -> Network:
    """Read a network, such as ``eth1`` or ``50us+0.125GB/s``, words apart by commas.

    ``slower=K`` makes messages and bytes take K times as long. A CPU computes that much
    slower than a GPU, so with it fast links keep their proportion to the computation.

    Raises:
        ValueError: with one sentence, if it says nothing that can be.
    """
    pairs = [
        word.split("=", 1) if "=" in word else ("across", word)
        for word in re.split(r"[\s,]+", text.strip())
        if word
    ]
    # A word without a name is the link across nodes.
    words = dict(pairs)
    if twice := [name for name in words if [k for k, _ in pairs].count(name) > 1]:
        values = " and ".join(value for name, value in pairs if name == twice[0])
        raise ValueError(f"link {text!r}: {twice[0]} is both {values}: name one")
    known = {"across", "inside", "per_node", "slower"}
    if unknown := words.keys() - known:
        raise ValueError(f"link {text!r}: {min(unknown)} is none of {sorted(known)}")
    if "across" not in words:
        raise ValueError(f"link {text!r}: name one, such as {' or '.join(LINKS)}")
    if ("inside" in words) != ("per_node" in words):
        raise ValueError(f"link {text!r}: inside and per_node go together")
    slower = number(text, "slower", words.get("slower", "1"))
    across = link(text, words["across"], slower)
    per_node = number(text, "per_node", words.get("per_node", "1"))
    if per_node != int(per_node) or per_node < 1:
        raise ValueError(f"link {text!r}: per_node must be a whole number, at least 1")
    inside = link(text, words.get("inside", words["across"]), slower)
    return Network(inside, across, int(per_node))


def link(text: str, name: str, slower: float) -> Link:
    """Return the link with this name, or with these numbers."""
    if name in LINKS:
        found = LINKS[name]
    elif own := OWN.match(name):
        alpha, speed = number(text, "us", own[1]), number(text, "GB/s", own[2])
        found = Link("your own", alpha, speed)
    else:
        names = ", ".join(LINKS)
        raise ValueError(f"link {name!r}: there are {names}, or 50us+0.125GB/s")
    if slower == 1:
        return found
    return Link(found.label, found.alpha_us * slower, found.gb_per_s / slower)


def number(text: str, what: str, value: str) -> float:
    """Return a number above 0."""
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ValueError(f"link {text!r}: {what} {value!r} must be a number above 0")
    return found
