"""Collectives: a schedule step by step and chunk by chunk, and what it costs."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.collectives import costs, sums
from allranks.topics.collectives.picture import exchange
from allranks.topics.collectives.runs import compare
from allranks.topics.kit.explorable import Explorable

MOST_RANKS, MOST_NUMBERS = 8, 10**10
LEAST, LONGEST = 0.001, 1e6  # GB/s; µs per message
MOST_SENT = 4_000_000  # numbers per rank that real ranks may send


class Collectives(Explorable):
    """A collective, an algorithm for it, and the steps done so far.

    Traits:
        collective, algorithm: as in ``allranks.topics.collectives.sums.FORMULAS``.
        world_size: ranks, 1 to 8.
        numbers: float32 numbers in the whole buffer, which a rank holds after
            all_gather, and before any other collective (rank 0 before broadcast).
        alpha_us: α, µs per message.
        gb_per_s: B, 10⁹ bytes per second and link.
        step: the number of steps done.
    """

    name = "collectives"

    collective = traitlets.Unicode("all_reduce").tag(sync=True)
    algorithm = traitlets.Unicode("ring").tag(sync=True)
    world_size = traitlets.Int(4).tag(sync=True)
    numbers = traitlets.Int(1_000_000).tag(sync=True)
    alpha_us = traitlets.Float(10).tag(sync=True)
    gb_per_s = traitlets.Float(10).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @staticmethod
    def compute(
        collective: str,
        algorithm: str,
        world_size: int,
        numbers: int,
        alpha_us: float,
        gb_per_s: float,
        step: int,
    ) -> dict[str, Any]:
        """Say who holds what after the step, and what the whole schedule costs.

        ``chunks_passed`` counts chunks of n / W that cannot travel at the same time,
        ``waiting`` lists the ranks that have no message in this step, ``waits`` says
        for each algorithm of ``compare`` in which part of their time ranks wait, and
        ``sent`` counts each rank's bytes up to the step.

        Raises:
            ValueError: if there is no such algorithm, or a number is out of bounds.

        >>> state = {"world_size": 4, "numbers": 1000, "alpha_us": 10, "gb_per_s": 1}
        >>> facts = Collectives.compute("all_reduce", "ring", step=1, **state)
        >>> facts["messages"][0], facts["held"][1][0]
        ([0, 1, [3], 'reduce', 1000], [0, [1], False])
        """
        if whole("world_size", world_size, low=1) > MOST_RANKS:
            raise ValueError(
                f"{world_size} ranks do not fit here: at most {MOST_RANKS}"
            )
        steps = sums.schedule(collective, algorithm, world_size)
        if whole("numbers", numbers, low=1) > MOST_NUMBERS:
            raise ValueError(f"{numbers} numbers are too many: at most {MOST_NUMBERS}")
        if alpha_us < 0:
            raise ValueError(f"alpha_us must not be negative: {alpha_us:g}")
        if gb_per_s <= 0:
            raise ValueError(f"gb_per_s must be above 0, not {gb_per_s:g}")
        if gb_per_s < LEAST:
            raise ValueError(f"gb_per_s must be at least {LEAST}")
        if alpha_us > LONGEST:
            raise ValueError(f"alpha_us must be at most {LONGEST:.0f}")
        if whole("step", step, low=0) > len(steps):
            raise ValueError(f"step is {step}, but there are {len(steps)} steps")
        alpha, bandwidth = alpha_us * 1e-6, gb_per_s * 1e9
        sizes = [4 * size for size in sums.chunk_sizes(numbers, world_size)]
        # states[s] is what each rank holds after s steps; a number is 4 bytes
        # (float32).
        states = sums.simulate(steps, sums.before(collective, world_size))
        fresh = {(t.target, t.chunk) for t in steps[step - 1]} if step else ()
        comparison, waits = [], []
        for way in sums.FORMULAS[collective]:
            schedule = sums.schedule(collective, way, world_size)
            plan = costs.messages(schedule, sizes)
            links = costs.sent(plan, world_size)
            time = costs.seconds(plan, alpha, bandwidth)
            comparison.append([way, len(plan), max(map(sum, links)), time])
            waits.append(costs.wait_share(plan, world_size, alpha, bandwidth))
            if way == algorithm:
                mine = plan, links, time
        plan, links, time = mine
        now = [list(message) for message in plan[step - 1]] if step else []
        waiting = costs.waiting(plan[step - 1], world_size) if step else []
        ranks = f"{world_size} ranks" if world_size > 1 else "1 rank"
        summary = (
            f"{collective} by {algorithm}, {ranks}, {amount(4 * numbers, 'B')}: "
            f"{len(steps)} steps, {amount(time, 's')}; the busiest rank sends "
            f"{amount(max(map(sum, links)), 'B')}. "
        )
        if step:
            arrows = ", ".join(f"{source} → {target}" for source, target, *_ in now)
            most = amount(max(message[4] for message in now), "B")
            summary += f"Step {step}, {now[0][3]}: {arrows}, {most} at most each"
            if waiting:
                summary += f"; {len(waiting)} of {world_size} ranks wait"
            summary += "."
        else:
            summary += "Before the first step." if steps else "Nothing to do."
        if step == len(steps):
            summary += f" Done: each rank holds what {collective} promises."
        return {
            "num_steps": len(steps),
            "held": [
                [[chunk, sorted(who), (rank, chunk) in fresh] for chunk, who in order]
                for rank, order in enumerate(sorted(h.items()) for h in states[step])
            ],
            "messages": now,
            "waiting": waiting,
            "waits": waits,
            "sent": [sum(row) for row in costs.sent(plan[:step], world_size)],
            "chunk_bytes": sizes,
            "links": links,
            "seconds": time,
            "chunks_passed": round(
                world_size * costs.cost(collective, algorithm, world_size).share
            ),
            "formula": sums.FORMULAS[collective][algorithm],
            "compare": comparison,
            "fastest": [
                list(one)
                for one in costs.fastest(collective, world_size, alpha, bandwidth)
            ],
            "summary": summary,
        }

    @staticmethod
    def picture(
        collective: str, algorithm: str, world_size: int, step: int, **rest: Any
    ) -> Picture:
        """Draw which chunks each rank holds at first, and after the step."""
        steps = sums.schedule(collective, algorithm, world_size)
        held = sums.simulate(steps, sums.before(collective, world_size))

        def texts(state: sums.Held) -> list[list[str]]:
            if collective == "all_to_all":
                return [
                    [f"{i // world_size}→{i % world_size}" for i in sorted(mine)]
                    for mine in state
                ]
            chunks = range(world_size)
            return [[str(total(mine.get(i))) for i in chunks] for mine in state]

        def total(ranks: frozenset[int] | None) -> int | None:
            return ranks and sum(10**rank for rank in ranks)

        def digits(text: str) -> list[int]:
            if "→" in text:  # from→to
                return [int(text.partition("→")[0])]
            return [rank for rank, digit in enumerate(text[::-1]) if digit != "0"]

        title = f"{collective} by {algorithm}, step {step} of {len(steps)}"
        return exchange(title, texts(held[0]), texts(held[step]), made_from=digits)

    def measure(self) -> dict[str, Any]:
        """Let real ranks run the schedule, and compare with torch's own collective."""
        facts, size = self.facts, self.world_size
        if not size <= self.numbers <= MOST_SENT:
            raise ValueError(f"numbers must be {size} to {MOST_SENT} to be really sent")
        with Ranks(size) as ranks:
            work = self.collective, self.algorithm, self.numbers
            found = ranks.run(compare, *work, timeout=60)
        wrong = [rank for rank, one in enumerate(found) if not one["equal"]]
        rows = [one["sent"] for one in found]
        ratio = max(o["ours_s"] for o in found) / max(o["torch_s"] for o in found)
        name = self.collective
        equal = f"Not equal to torch's {name} on ranks {wrong}!"
        if not wrong:
            equal = f"The result is that of torch's {name}, bit for bit."
        same = "as the model says" if rows == facts["links"] else f"not as said: {rows}"
        return {
            "equal": not wrong,
            "links": rows,
            "ratio": ratio,
            "summary": f"{size} live ranks sent the chunks with isend and irecv. "
            f"{equal} {amount(sum(map(sum, rows)), 'B')} were sent, {same}. On this "
            f"machine it took {ratio:.1f} times as long as torch's own.",
        }


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = "collective", "algorithm", "world_size", "numbers", "step"
    link = itertools.cycle([(10.0, 10.0), (0.0, 0.125), (2.5, 450.0), (1e4, 3.0)])
    good = [
        (name, way, size, numbers, step)
        for name, ways in sums.FORMULAS.items()
        for way in ways
        for size in (1, 2, 3, 4, 6, 7, 8)
        # Numbers that the ranks divide evenly, and some that they do not.
        for numbers in ((1, 1_000_003) if size % 2 else (3, 10**10))
        for last in [len(sums.schedule(name, way, size))]
        for step in {0, last // 2, last}
    ]
    bad = itertools.product(
        ["all_reduce"], ["ring", "bruck"], [0, 4, 9], [0, 8, 10**11], [-1, 7]
    )
    bad = [*bad, ("scan", "ring", 4, 8, 0), ("broadcast", "ring", 4, 8, 0)]
    states = [dict(zip(keys, values, strict=True)) for values in (*good, *bad)]
    states = [
        s | dict(zip(("alpha_us", "gb_per_s"), next(link), strict=True)) for s in states
    ]
    wrong = [
        ("alpha_us", -1.0),
        ("alpha_us", 2e6),
        ("gb_per_s", 0.0),
        ("gb_per_s", 1e-4),
    ]
    return [*states, *(states[0] | dict([pair]) for pair in wrong)]
