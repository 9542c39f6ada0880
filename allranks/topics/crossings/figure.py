"""How long an all_reduce takes, by its size, the ranks, the link and the algorithm."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.collectives import published
from allranks.topics.crossings import sums
from allranks.topics.crossings.runs import time_all_reduce
from allranks.topics.kit.explorable import Explorable
from allranks.topics.links import sums as links

MOST_RANKS, SIZES = 1024, (10**3, 10**10)  # ranks; bytes
LATENCIES, SPEEDS = (0, 1e6), (0.001, 10_000)  # µs per message; GB/s
MOST_RUN = 8, 64_000_000  # ranks, bytes: what a laptop can run
# A real machine that is like one link of ours: its label, GPUs, source, GB/s by bytes.
REAL = (links.LINKS["nvlink4"].label, *published.MEASURED["8 H100, NVLink 4"])
SHOWN = [10**3, 32 * 10**3, 10**6, 32 * 10**6, 10**9]  # bytes, in the picture


class Crossings(Explorable):
    """An all_reduce of some size, which several algorithms could do.

    Traits:
        world_size: ranks, 2 to 1024.
        num_bytes: of the tensor that each rank brings.
        alpha_us: α, µs per message.
        gb_per_s: B, 10⁹ bytes per second and link.
        halving: whether halving and doubling may be chosen, too.
    """

    name = "crossings"

    world_size = traitlets.Int(4).tag(sync=True)
    num_bytes = traitlets.Int(1_000_000).tag(sync=True)
    alpha_us = traitlets.Float(links.LINKS["ib400"].alpha_us).tag(sync=True)
    gb_per_s = traitlets.Float(links.LINKS["ib400"].gb_per_s).tag(sync=True)
    halving = traitlets.Bool(False).tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Say what each algorithm takes, which is fastest, and from where on.

        ``ways`` has for each algorithm its name, its steps, the bytes that cannot
        travel at the same time as a share of the tensor, and its seconds. A ring is
        faster than a tree from ``crossing`` bytes on. ``winners`` has the fastest
        algorithms in the order of sizes, each with the bytes that it begins to win at,
        and ``published`` the bytes and seconds of a real machine with this link and as
        many ranks, if there is one.

        Raises:
            ValueError: if a number is out of bounds.

        >>> facts = Crossings.compute(**Crossings(world_size=8).state)
        >>> facts["fastest"], facts["ways"][1][:3], round(facts["crossing"])
        ('tree', ['tree', 6, 6], 1317647)
        """
        size, num_bytes = state["world_size"], state["num_bytes"]
        if whole("world_size", size, 2) > MOST_RANKS:
            raise ValueError(f"world_size must be at most {MOST_RANKS}, not {size}")
        if whole("num_bytes", num_bytes, SIZES[0]) > SIZES[1]:
            raise ValueError(f"num_bytes must be at most {SIZES[1]}, not {num_bytes}")
        for name, (low, high) in {"alpha_us": LATENCIES, "gb_per_s": SPEEDS}.items():
            if not low <= state[name] <= high:
                raise ValueError(f"{name} must be {low:g} to {high:.0f}")
        alpha, bandwidth = state["alpha_us"] * 1e-6, state["gb_per_s"] * 1e9
        costs = sums.all_reduce(size)
        # sums knows halving for a power of two of ranks only.
        if not state["halving"]:
            costs.pop("halving", None)
        ways = [
            [name, *cost, sums.seconds(cost, num_bytes, alpha, bandwidth)]
            for name, cost in costs.items()
        ]
        best = min(ways, key=lambda way: way[3])
        facts = {
            "ways": ways,
            "fastest": best[0],
            "seconds": best[3],
            "crossing": sums.crossing(costs["tree"], costs["ring"], alpha, bandwidth),
            "balance": alpha * bandwidth,
            "winners": sums.winners(costs, *SIZES, alpha, bandwidth),
            # As nccl-tests has it: what each link carries if the ring is the algorithm.
            "bus": 2 * (size - 1) / size * num_bytes / best[3],
            "link": links.named(state["alpha_us"], state["gb_per_s"]),
        }
        facts["published"] = _published(facts["link"], size)
        return {**facts, "summary": _summary(state, facts, best)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of what each algorithm takes at a few sizes."""
        rows = []
        for num_bytes in SHOWN:
            facts = Crossings.compute(**{**state, "num_bytes": num_bytes})
            times = [
                amount(way[3], "s") + (" (fastest)" * (way[0] == facts["fastest"]))
                for way in facts["ways"]
            ]
            rows.append([amount(num_bytes, "B"), *times])
        return table(["all_reduce of", *(way[0] for way in facts["ways"])], rows)

    def measure(self) -> dict[str, Any]:
        """Let real ranks do it, through gloo and this machine's memory."""
        for name, most in zip(("world_size", "num_bytes"), MOST_RUN, strict=True):
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most} to be really run")
        with Ranks(self.world_size) as ranks:
            found = max(ranks.run(time_all_reduce, self.num_bytes, timeout=60))
        bus = 2 * (self.world_size - 1) / self.world_size * self.num_bytes / found
        return {
            "seconds": found,
            "summary": f"{self.world_size} live ranks of this machine took "
            f"{amount(found, 's')}, through gloo: a bus bandwidth of "
            f"{amount(bus, 'B')}/s. "
            "The drawing shows it as a square.",
        }


def _published(link: str, world_size: int) -> list[list[float]]:
    """Return the bytes and seconds of the real machine, if it is like this one."""
    like, num_gpus, _, bus = REAL
    if (link, world_size) != (like, num_gpus):
        return []
    return [[n, published.seconds(n, num_gpus, speed)] for n, speed in bus.items()]


def _summary(state: dict, facts: dict, best: list) -> str:
    name, steps, _, seconds = best
    link = facts["link"] or "this link"
    latency = steps * state["alpha_us"] * 1e-6
    share = int(100 * latency / seconds + 0.5)
    words = f"{amount(state['num_bytes'], 'B')} over {state['world_size']} ranks, "
    words += f"{link}: {name} takes {amount(seconds, 's')}, {share} % of it for its "
    words += (
        f"{steps} steps. That is a bus bandwidth of {amount(facts['bus'], 'B')}/s. "
    )
    if facts["crossing"]:
        words += f"A ring is faster than a tree from {amount(facts['crossing'], 'B')} "
        words += "on."
    else:
        words += "A ring is never slower than a tree here."
    if state["halving"] and len(facts["ways"]) < 4:
        words += " Halving needs a power of two of ranks."
    return words


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = Crossings().state_names()
    pairs = [link[1:] for link in links.LINKS.values()] + [(0.0, 3.0), (7.5, 0.125)]
    sizes = (2, 3, 4, 6, 8, 12, 1000, 1024)
    good = [
        (size, num_bytes, *pair, halving)
        for (size, pair), num_bytes, halving in itertools.product(
            itertools.product(sizes, pairs), (1000, 1_000_003, 10**10), (False, True)
        )
    ]
    bad = [
        (size, num_bytes, *pair, True)
        for size in (-1, 1, 1025)
        for num_bytes in (0, 999, 10**6, 10**11)
        for pair in ((14.0, 50.0), (-1.0, 50.0), (14.0, 0.0))
    ]
    bad += [(8, 1000, *pair, True) for pair in ((-1.0, 5.0), (2e6, 5.0), (1.0, 1e5))]
    return [dict(zip(keys, values, strict=True)) for values in (*good, *bad)]
