"""Pipeline schedules: who works on which micro-batch when, and what it costs."""

from itertools import pairwise, product
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.units import whole
from allranks.live.ranks import Ranks
from allranks.topics.kit.explorable import Explorable
from allranks.topics.pipelines import picture, schedules
from allranks.topics.pipelines.runs import join
from allranks.topics.pipelines.sums import Work, peak_held, timetable

MOST = {"num_ranks": 8, "num_microbatches": 16, "stages_per_rank": 4}
MOST |= dict.fromkeys(("forward", "input_gradient", "weight_gradients"), 9)
STEP_S = 1.2  # length of a measured step; messages take little in comparison
WORDS = {"F": "forward", "B": "backward", "I": "input gradient"}
WORDS["W"] = "weight gradients"
SHOWN = {"GPipe": "GPipe", "1F1B": "1F1B", "Interleaved1F1B": "Interleaved 1F1B"}
SHOWN["InterleavedZeroBubble"] = "Interleaved zero bubble"
SHOWN["ZBVZeroBubble"] = "ZBV zero bubble"


class Pipeline(Explorable):
    """One of PyTorch's schedules at work, and a moment of it.

    Traits:
        schedule: one of ``schedules.NAMES``, as torch calls them.
        num_ranks, num_microbatches: at most 8 and 16.
        stages_per_rank: of the interleaved schedules; ZBV has two, the others one.
        forward, input_gradient, weight_gradients: how long a rank's share of the model
            takes with one micro-batch, in any one unit. With v stages per rank, each
            stage takes 1/v of it. A whole backward pass takes the last two together.
        step: the moment, as a number of times at which a pass begins or ends.
        against: the schedule that stands beside it; "" for none.
    """

    name = "pipelines"

    schedule = traitlets.Unicode("1F1B").tag(sync=True)
    num_ranks = traitlets.Int(4).tag(sync=True)
    num_microbatches = traitlets.Int(8).tag(sync=True)
    stages_per_rank = traitlets.Int(2).tag(sync=True)
    forward = traitlets.Int(1).tag(sync=True)
    input_gradient = traitlets.Int(1).tag(sync=True)
    weight_gradients = traitlets.Int(1).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    against = traitlets.Unicode("GPipe").tag(sync=True)

    @staticmethod
    def compute(
        schedule: str, step: int, against: str = "", **sizes: int
    ) -> dict[str, Any]:
        """Say who works when, how much of the time is idle, and what is held.

        ``rows`` lists each rank's work as [kind, micro-batch, stage, start, end], in
        ticks, of which ``ticks`` make one unit. ``idle`` is the idle share from the
        first work of all ranks to the last. ``idle_within`` counts from a rank's own
        first work to its own last, for the rank that takes longest, as the zero-bubble
        paper does. ``peaks`` counts activations by stages, and ``peak`` by a rank's
        whole share of the model. ``other`` is the schedule ``against``, in its own
        ticks; None if there is none, or if torch refuses it with these numbers.

        Raises:
            ValueError: if a number is out of bounds, or torch refuses the schedule.

        >>> facts = Pipeline().facts
        >>> facts["torch"], facts["idle"], facts["peaks"]
        ('Schedule1F1B', 0.2727272727272727, [4, 3, 2, 1])
        """
        for name, most in MOST.items():
            if whole(name, sizes[name], 1) > most:
                raise ValueError(f"{name} is {sizes[name]}: at most {most} fit here")
        whole("step", step, 0)
        num_ranks, count, v, *times = (sizes[name] for name in MOST)
        if not schedule.startswith("Interleaved"):
            v = 2 if schedule == "ZBVZeroBubble" else 1
        orders = schedules.write_orders(schedule, num_ranks, count, v)
        # A stage is 1/v of a rank's share of the model, so in ticks of 1/v all times
        # are whole numbers.
        works = timetable(orders, times[0], times[1] + times[2], times[2])
        rows = [[list(w[1:]) for w in works if w.rank == r] for r in range(num_ranks)]
        end, busy = max(w.end for w in works), count * v * sum(times)
        span = max(row[-1][4] - row[0][3] for row in rows)
        moments = sorted({t for w in works for t in (w.start, w.end)})
        time = moments[min(step, len(moments) - 1)]
        places = schedules.stages_of(schedule, num_ranks, v)
        rank_of = dict(sorted((s, r) for r, found in enumerate(places) for s in found))
        # Neighboring stages on one rank (ZBV's turn) need no message.
        hops = sum(1 for a, b in pairwise(rank_of.values()) if a != b)
        now = [_say(row, time, rank_of, v) for row in rows]
        working = len([w for row in rows for w in row if w[3] <= time < w[4]])
        peaks = [peak_held(order) for order in orders]
        most, ranks = _number(max(peaks), v), "ranks" if num_ranks > 1 else "rank"
        microbatches = "micro-batch" if most == "1" else "micro-batches"
        return {
            "torch": f"Schedule{schedule}",
            "stages_per_rank": v,
            "rows": rows,
            "ticks": v,
            "length": end / v,
            "work": busy / v,
            "idle": (end - busy) / end,
            "idle_within": (span - busy) / span,
            "law": schedules.idle_share(schedule, num_ranks, count, v, times),
            "peaks": peaks,
            "peak": max(peaks) / v,
            "messages": 2 * count * hops,
            "moments": moments,
            "time": time,
            "held": [_held(row, time) for row in rows],
            "now": now,
            "other": _beside(against, sizes),
            "summary": f"{SHOWN[schedule]} on {num_ranks} {ranks}: a step takes "
            f"{_number(end, v)} units, of which each rank works {_number(busy, v)}; "
            f"{_percent(end - busy, end)} of the time is idle. At most, a rank holds "
            f"the activations of {most} {microbatches}. "
            f"At time {_number(time, v)}, {working} of {num_ranks} {ranks} "
            f"{'works' if working == 1 else 'work'}.",
        }

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Draw who works when."""
        facts = Pipeline.compute(**state)
        works = [Work(r, *w) for r, row in enumerate(facts["rows"]) for w in row]
        return picture.schedule(facts["torch"], works, unit=state["forward"])

    def measure(self) -> dict[str, Any]:
        """Run torch's schedule on live ranks, with stages that sleep.

        Returns:
            ``rows``, as ``compute`` does; ``same``, whether every rank works in the
            order shown; ``efficiency``, the share of the time that is work.
        """
        facts, state, num_ranks = self.facts, self.state, self.num_ranks
        v, (forward, *rest) = facts["ticks"], [state[name] for name in list(MOST)[3:]]
        unit_s = max(STEP_S / facts["length"], 0.006 * v / min(forward, *rest))
        args = self.schedule, self.num_microbatches
        options = {"stage_s": [forward * unit_s / v] * v * num_ranks, "steps": 2}
        options["backward"] = [n / forward for n in rest]
        with Ranks(num_ranks) as ranks:
            steps = join(ranks.run(_record, *args, timeout=60, quiet=True, **options))
        # The faster of the two steps was less disturbed.
        works = min(steps, key=lambda works: max(w.end for w in works))
        took, tick_s = max(w.end for w in works) / unit_s, unit_s / v
        rows = [[] for _ in range(num_ranks)]
        for rank, *work, start, end in works:
            rows[rank].append([*work, start / tick_s, end / tick_s])
        done, shown = ([[w[:3] for w in r] for r in x] for x in (rows, facts["rows"]))
        same = "in exactly the order shown" if done == shown else "in ANOTHER order"
        return {
            "rows": rows,
            "same": done == shown,
            "efficiency": facts["work"] / took,
            "summary": f"{facts['torch']} ran on {self.num_ranks} live ranks, stages "
            f"asleep: every rank worked {same}. {100 * facts['work'] / took:.0f} % of "
            f"the time was work; the model says {100 - 100 * facts['idle']:.0f} %.",
        }


def _beside(against: str, sizes: dict[str, int]) -> dict[str, Any] | None:
    """Return what the drawing needs of the schedule to compare with."""
    if not against:
        return None
    if against not in schedules.NAMES:
        known = ", ".join(schedules.NAMES)
        raise ValueError(f"against is {against}: there are {known}")
    try:
        facts = Pipeline.compute(against, 0, **sizes)
    except ValueError:
        return None
    ticks, found = facts["ticks"], {name: facts[name] for name in ("rows", "ticks")}
    ends = {"end": facts["length"], "work": facts["work"]}
    whole_ticks = {name: round(units * ticks) for name, units in ends.items()}
    return {**found, "peaks": facts["peaks"], **whole_ticks}


def _record(*args: Any, **options: Any) -> list[list[Work]]:
    """Run ``runs.record`` on a live rank, which imports it there."""
    from allranks.topics.pipelines.runs import record

    return record(*args, **options)


def _say(row: list[list], time: float, rank_of: dict[int, int], v: int) -> str:
    """Say what a rank does at a time."""
    for kind, i, stage, start, end in row:
        if time >= end:
            continue
        if start <= time:
            where = f", stage {stage}" if v > 1 else ""
            return f"{WORDS[kind]} of micro-batch {i}{where}"
        what = "" if kind == "F" else "the gradient of "
        peer = rank_of[stage - 1 if kind == "F" else stage + 1]
        return f"idle, waits for {what}micro-batch {i} from rank {peer}"
    return "done"


def _held(row: list[list], time: float) -> int:
    """Count the activations of stages that a rank holds at a time."""
    begun = [work for work in row if work[0] == "F" and work[3] <= time]
    return len(begun) - len([w for w in row if w[0] in "BW" and w[4] <= time])


def _number(ticks: float, v: int) -> str:
    """Write ticks as units."""
    return f"{ticks / v:.2f}".rstrip("0").rstrip(".")


def _percent(part: int, whole: int) -> str:
    """Write a share; a part that is not 0 never reads as 0 %."""
    if 0 < 200 * part < whole:
        return "under 1 %"
    return f"{(200 * part + whole) // (2 * whole)} %"  # ties up, as in JavaScript


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = "schedule", *MOST, "step"
    times = [(1, 1, 1), (1, 1, 2), (2, 3, 1), (9, 1, 9), (1, 9, 9)]
    shapes = "1 1 1, 1 16 4, 2 2 2, 4 8 2, 3 4 3, 8 16 2, 6 5 1, 4 10 2, 5 3 1, 8 8 4"
    shapes = [tuple(map(int, s.split())) for s in f"{shapes}, 4 9 1, 7 14 1".split(",")]
    good = [
        (name, *shape, *times[i % 5], (0, 7, 40, 9999)[i % 4])
        for i, (name, shape) in enumerate(product(schedules.NAMES, shapes * 4))
    ]
    sizes = [(0, 1, 1), (9, 9, 1), (4, 3, 1), (2, 17, 1), (2, 2, 5), (2, 2, 0)]
    bad = [("1F1B", *size, 1, 1, 1, 0) for size in sizes]
    bad += [("Interleaved1F1B", *size, 1, 1, 1, 0) for size in ((4, 9, 2), (2, 5, 2))]
    bad += [("InterleavedZeroBubble", 2, 5, 1, *t, 0) for t in times]
    bad += [("GPipe", 2, 2, 1, *t, 0) for t in ((0, 1, 1), (1, -1, 1), (1, 1, 10))]
    bad += [(n, 2, 2, 1, 1, 1, 1, s) for n, s in (("gpipe", 0), ("", 0), ("GPipe", -1))]
    bad += [("1F1B", ranks, 2, 1, 1, 1, 1, 0) for ranks in range(3, 9)]
    others = "", *schedules.NAMES
    return [
        dict(zip(keys, state, strict=True)) | {"against": others[i % len(others)]}
        for i, state in enumerate((*good, *bad))
    ] + [dict(zip(keys, good[0], strict=True)) | {"against": "gpipe"}]
