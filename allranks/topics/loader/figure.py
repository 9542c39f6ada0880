"""A loader is a queue: who waits, the model or the workers, and what would help."""

import itertools
from math import floor
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.kit.explorable import Explorable
from allranks.topics.loader import sums
from allranks.topics.loader.runs import prepare

NUM = 60  # batches that can be followed
TIMES, SIZES = (0.1, 10_000), (0.001, 10_000)  # ms; MB
WHOLE = {  # of each whole number: the least and the most
    "jitter": (0, 100),
    "num_workers": (0, 16),
    "prefetch_factor": (1, 16),
    "cores": (1, 128),
    "batch": (0, NUM - 1),
}
MOST_RUN = 8  # workers that a laptop can run
SHOWN = [0, 1, 2, 3, 4, 6, 8, 12, 16]  # workers, in the table


class Loader(Explorable):
    """A model that takes batches, and workers that load them ahead.

    Traits:
        load_ms: to load a batch, on a core of its own, on the average.
        step_ms: of the model.
        num_workers: of the DataLoader.
        prefetch_factor: of the DataLoader; without workers it means nothing.
        cores: of the machine, for this one process and its workers.
        model_on_cpu: whether the model's step needs one of these cores.
        jitter: in per cent; a batch takes load_ms ± so much.
        batch_mb: 10⁶ bytes of a batch.
        batch: the batch to follow, from 0.
    """

    name = "loader"

    load_ms = traitlets.Float(60.0).tag(sync=True)
    step_ms = traitlets.Float(25.0).tag(sync=True)
    num_workers = traitlets.Int(1).tag(sync=True)
    prefetch_factor = traitlets.Int(2).tag(sync=True)
    cores = traitlets.Int(8).tag(sync=True)
    model_on_cpu = traitlets.Bool(False).tag(sync=True)
    jitter = traitlets.Int(0).tag(sync=True)
    batch_mb = traitlets.Float(10.0).tag(sync=True)
    batch = traitlets.Int(0).tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Play an epoch's begin, and say who waits, what limits it, and what it holds.

        ``batches`` has for each batch its worker, and when it was asked for, begun,
        ready, taken and done, in ms. ``bounds`` are steps per second; ``per_s`` and who
        waits leave out the start.

        Raises:
            ValueError: if a number is out of bounds.

        >>> facts = Loader.compute(**Loader(num_workers=2).state)
        >>> facts["limit"], facts["enough"], round(facts["per_s"])
        ('workers', 3, 33)
        """
        for name, (low, most) in WHOLE.items():
            if whole(name, state[name], low) > most:
                raise ValueError(f"{name} must be at most {most}, not {state[name]}")
        for name, (low, most) in zip(
            ("load_ms", "step_ms", "batch_mb"), (TIMES, TIMES, SIZES), strict=True
        ):
            if not low <= state[name] <= most:
                raise ValueError(f"{name} must be {low:g} to {most:g}")
        load, step = state["load_ms"], state["step_ms"]
        num_workers = state["num_workers"]
        shared = state["cores"], state["model_on_cpu"]
        room = num_workers * state["prefetch_factor"]
        # So many more that the queue does not run dry before the last of NUM.
        loads = sums.load_times(NUM + room, load, state["jitter"] / 100)
        batches = sums.simulate(
            loads, step, num_workers, state["prefetch_factor"], *shared
        )
        per_s, model_waits, workers_wait = sums.rates(batches, NUM, num_workers)
        allowed = sums.bounds(load, step, num_workers, *shared)
        limit = min(allowed, key=allowed.get)
        most = max(depth for _, depth in sums.depths(batches))
        facts = {
            "batches": [list(one) for one in batches],
            "per_s": per_s,
            "model_waits": model_waits,
            "workers_wait": workers_wait,
            "bounds": allowed,
            "limit": limit,
            "enough": sums.enough(load, step, *shared),
            "room": room,
            "most_ready": most,
            "room_bytes": room * state["batch_mb"] * 1e6,
            "held_bytes": most * state["batch_mb"] * 1e6,
        }
        return {**facts, "summary": _summary(state, facts)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of what each number of workers brings."""
        rows = []
        for num_workers in SHOWN:
            facts = Loader.compute(**{**state, "num_workers": num_workers})
            mark = " (this)" if num_workers == state["num_workers"] else ""
            rows.append([
                f"{num_workers}{mark}",
                _digits(facts["per_s"]),
                f"{_percent(facts['model_waits'])} %",
                amount(facts["room_bytes"], "B") if num_workers else "nothing",
            ])  # fmt: skip
        head = ["workers", "steps per second", "the model waits", "queue size"]
        return table(head, rows)

    def measure(self) -> dict[str, Any]:
        """Let a real DataLoader prepare batches, and count how many it is ahead."""
        if self.num_workers > MOST_RUN:
            raise ValueError(f"num_workers must be at most {MOST_RUN} to be really run")
        with Ranks(1) as ranks:
            run = ranks.run(prepare, self.num_workers, self.prefetch_factor, timeout=90)
        counts, by = run[0]
        room = self.facts["room"]
        wanted = [taken + room for taken in range(1, len(counts) + 1)]
        turns = [b % max(1, self.num_workers) for b in range(len(by))]
        words = (
            f"After the model took 1 to {len(counts)} batches of a real DataLoader, "
        )
        words += f"{', '.join(map(str, counts))} had been prepared: "
        if counts == wanted:
            words += f"{room} ahead, as the model says."
        else:
            words += f"the model says {', '.join(map(str, wanted))}."
        if self.num_workers:
            words += f" The workers took turns{'' if by == turns else ' otherwise'}: "
            words += f"{' '.join(map(str, by[:12]))}{' …' if len(by) > 12 else ''}."
        equal = counts == wanted and by == turns
        return {"counts": counts, "by": by, "equal": equal, "summary": words}


def _digits(value: float) -> str:
    """Write a number with three digits or so; a half is rounded up."""
    places = 1 if value >= 100 else 10 if value >= 10 else 100
    return f"{floor(value * places + 0.5) / places:.10g}"


def _percent(share: float) -> int:
    return floor(100 * share + 0.5)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _summary(state: dict, facts: dict) -> str:
    num_workers, most = state["num_workers"], facts["enough"]
    helps = f"{'one worker helps' if most == 1 else f'up to {most} workers help'}."
    cores = "One core is" if state["cores"] == 1 else f"The {state['cores']} cores are"
    words = f"{_count(num_workers, 'worker') if num_workers else 'No workers'}, "
    words += f"loads of {amount(state['load_ms'] / 1000, 's')}, "
    words += f"steps of {amount(state['step_ms'] / 1000, 's')}: "
    words += f"{_digits(facts['per_s'])} steps/s, and the model waits "
    words += f"{_percent(facts['model_waits'])} % of the time. "
    if not num_workers:
        return f"{words}Nobody loads while it works; {helps}"
    words += {
        "model": "The model is the limit; more workers do not help. ",
        "workers": f"The workers are the limit; {helps} ",
        "cores": f"{cores} the limit: "
        f"{_digits(facts['bounds']['cores'])} steps per second, with any number of "
        "workers. ",
    }[facts["limit"]]
    if state["jitter"]:
        words += "This is by the averages: batches are taken in their order, so a late "
        words += "one holds up those behind it, and a longer queue helps. "
    # A queue that stays empty costs nothing now, but the memory may be needed later.
    held, room = facts["most_ready"], facts["room"]
    if held:
        size = amount(facts["held_bytes"], "B")
        return f"{words}Queue: at most {held} of {room} ({size})."
    size = amount(facts["room_bytes"], "B")
    return f"{words}The queue stays empty; it can hold {room} ({size})."


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = Loader().state_names()
    speeds = (60.0, 20.0), (10.0, 33.3), (0.1, 10_000.0), (7.25, 7.25)
    workers = (0, 1), (1, 1), (1, 4), (2, 2), (3, 1), (5, 2), (8, 2), (16, 16)
    machines = (1, True), (2, True), (4, False), (128, False)
    # batch_mb and batch change with each state; with all others they would multiply.
    good = [
        (*speed, *loaders, *machine, jitter, 0.5 + 3 * place, (7 * place) % NUM)
        for place, (speed, loaders, machine, jitter) in enumerate(
            itertools.product(speeds, workers, machines, (0, 45, 100))
        )
    ]
    usual = Loader().state
    wrong = {
        "load_ms": (0.0, 0.05, -3.0, 10_001.0),
        "step_ms": (0.0, -1.0, 20_000.0),
        "num_workers": (-1, 17, 100),
        "prefetch_factor": (0, -2, 17),
        "cores": (0, -4, 129),
        "jitter": (-1, 101, 1000),
        "batch_mb": (0.0, -5.0, 20_000.0),
        "batch": (-1, NUM, 1000),
    }
    bad = [{**usual, name: v} for name, values in wrong.items() for v in values]
    bad += [{**usual, "model_on_cpu": True, "cores": n, "jitter": 500} for n in (1, 2)]
    return [dict(zip(keys, state, strict=True)) for state in good] + bad
