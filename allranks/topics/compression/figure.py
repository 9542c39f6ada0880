"""What a step costs if ranks send less: fewer bits, fewer numbers, or less often."""

import itertools
from typing import Any, NamedTuple

import traitlets

from allranks.base.picture import Picture, table
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.compression.runs import count_bytes
from allranks.topics.compression.sums import Job, as_good, ways
from allranks.topics.kit.explorable import Explorable
from allranks.topics.links import sums as links

LABELS = {
    "none": "No compression",
    "bf16": "bf16",
    "topk": "Top-k",
    "powersgd": "PowerSGD",
    "local": "Local steps",
}
WHOLE = {  # of each whole number: the least and the most
    "world_size": (2, 1024),
    "matrices": (1, 10_000),
    "width": (2, 65_536),
    "tokens": (1, 10**9),
    "approx_rank": (1, 65_536),
    "inner_steps": (1, 100_000),
}
BOUNDS = {
    "compute_ms": (0.01, 1e6),
    "alpha_us": (0, 1e6),
    "gb_per_s": (0.001, 10_000),
    "search_gb_per_s": (0.01, 10_000),
    "keep_percent": (0.001, 100),
}
MOST_RUN = 8, 2_000_000  # ranks, numbers: what a laptop can run


class Model(NamedTuple):
    """A model and the machine that trains it."""

    label: str
    matrices: int
    width: int
    compute_ms: float
    tokens: int
    search_gb_per_s: float


# The first was measured on one core. The times of the others are estimates: six
# operations per weight and token, at 40 % of an H100's peak. 50 GB/s is a guess.
MODELS = [
    Model("about this book's small GPT", 33, 64, 14.0, 1024, 1.0),
    Model("GPT-2 small on H100s", 144, 768, 10.5, 8192, 50.0),
    Model("a 7B model on H100s", 384, 4096, 800.0, 8192, 50.0),
]
FIELDS, FIRST = Model._fields, MODELS[-1]


class Compression(Explorable):
    """One step of data parallelism, which sends gradients in one of five ways.

    Traits:
        method: "none", "bf16", "topk", "powersgd" or "local".
        world_size: ranks, 2 to 1024.
        matrices, width: the model's weights, square matrices of width × width.
        compute_ms: forward and backward of a step, and the optimizer's.
        tokens: that a rank reads in a step.
        alpha_us: α, µs per message.
        gb_per_s: B, 10⁹ bytes per second and link.
        search_gb_per_s: gradient that top-k goes through, 10⁹ bytes per second.
        overlap: whether gradients are sent while backward computes others.
        keep_percent: of the numbers, what top-k sends.
        approx_rank: r of PowerSGD.
        inner_steps: H, the steps from one average of the weights to the next.
    """

    name = "compression"

    method = traitlets.Unicode("none").tag(sync=True)
    world_size = traitlets.Int(8).tag(sync=True)
    matrices = traitlets.Int(FIRST.matrices).tag(sync=True)
    width = traitlets.Int(FIRST.width).tag(sync=True)
    compute_ms = traitlets.Float(FIRST.compute_ms).tag(sync=True)
    tokens = traitlets.Int(FIRST.tokens).tag(sync=True)
    alpha_us = traitlets.Float(links.LINKS["ib400"].alpha_us).tag(sync=True)
    gb_per_s = traitlets.Float(links.LINKS["ib400"].gb_per_s).tag(sync=True)
    search_gb_per_s = traitlets.Float(FIRST.search_gb_per_s).tag(sync=True)
    overlap = traitlets.Bool(True).tag(sync=True)
    keep_percent = traitlets.Float(1.0).tag(sync=True)
    approx_rank = traitlets.Int(2).tag(sync=True)
    inner_steps = traitlets.Int(20).tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Say what a step takes in each way, and what the chosen one sends.

        ``ways`` has for each method its name, the bytes handed to collectives and sent,
        the messages that follow one another, and the seconds of encoding,
        communication, waiting for it, and of the step. ``as_good`` has the seconds in
        which each learns what a plain step teaches, or None. Top-k sends more than the
        whole gradient would from ``more_from`` ranks on.

        Raises:
            ValueError: if a number is out of bounds, or there is no such method.

        >>> facts = Compression.compute(**Compression(method="topk").state)
        >>> facts["fastest"], facts["more_from"], round(facts["sent"] / 1e9, 2)
        ('local', 101, 3.61)
        """
        if state["method"] not in LABELS:
            known = ", ".join(LABELS)
            raise ValueError(f"method must be one of {known}, not {state['method']}")
        for name, (low, high) in WHOLE.items():
            if whole(name, state[name], low) > high:
                raise ValueError(f"{name} must be at most {high}, not {state[name]}")
        for name, (low, high) in BOUNDS.items():
            if not low <= state[name] <= high:
                raise ValueError(f"{name} must be {low:g} to {high:.0f}")
        if state["approx_rank"] > state["width"]:
            raise ValueError(
                f"approx_rank must be at most the width, {state['width']}: a matrix "
                "has no higher rank"
            )
        job = _job(state)
        found = ways(job, state["alpha_us"] * 1e-6, state["gb_per_s"] * 1e9)
        own = next(way for way in found if way.name == state["method"])
        facts = {
            "ways": [list(way) for way in found],
            "as_good": [as_good(way.step, way.name, state) for way in found],
            "fastest": min(found, key=lambda way: way.step).name,
            "step": own.step,
            "sent": own.sent,
            "gradient": 4 * job.numbers,
            "buckets": job.buckets,
            "per_token": own.sent / state["tokens"],
            # Each rank gathers (W - 1) k values with their indices, of 8 bytes. A ring
            # sends 2 (W - 1) / W n numbers of 4 bytes, which is as much at W = n / k.
            "more_from": job.numbers // job.kept + 1,
            "link": links.named(state["alpha_us"], state["gb_per_s"]),
            "model": _model(state),
        }
        return {**facts, "summary": _summary(state, facts, own, found[0].step)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of what a step takes in each way, on some links."""
        rows = []
        for link in links.LINKS.values():
            changed = {"alpha_us": link.alpha_us, "gb_per_s": link.gb_per_s}
            facts = Compression.compute(**{**state, **changed})
            times = [
                amount(way[7], "s") + (" (fastest)" * (way[0] == facts["fastest"]))
                for way in facts["ways"]
            ]
            rows.append([link.label, *times])
        return table(["a step over", *LABELS.values()], rows)

    def measure(self) -> dict[str, Any]:
        """Count on real ranks what a hook of DDP hands to collectives."""
        state, (ranks, numbers) = self.state, MOST_RUN
        if self.world_size > ranks:
            raise ValueError(f"world_size must be at most {ranks} to be really run")
        # A model of billions does not fit here, and its matrices are all alike.
        small = _job(state).numbers > numbers
        if small:
            state |= {"matrices": 2, "width": 512}
        job, facts = _job(state), self.compute(**state)
        args = self.method, job.matrices, job.width, job.kept
        args += self.approx_rank, self.inner_steps
        with Ranks(self.world_size) as live:
            counts = live.run(count_bytes, *args, timeout=60)
        handed, seconds = counts[0][0], max(took for _, took in counts)
        says = next(w for w in facts["ways"] if w[0] == self.method)[1]
        words = "Two matrices of 512 x 512 stand for all. " if small else ""
        words += f"{self.world_size} live ranks handed {amount(handed, 'B')} each to "
        words += f"collectives in a step; for this the model says {amount(says, 'B')}."
        if seconds:
            speed = amount(4 * job.numbers / seconds, "B")
            words += f" They encoded {speed} of gradient per second."
        return {"handed": handed, "summary": words}


def _job(state: dict[str, Any]) -> Job:
    """Return the state in the sums' units."""
    numbers = state["matrices"] * state["width"] ** 2
    return Job(
        world_size=state["world_size"],
        matrices=state["matrices"],
        width=state["width"],
        compute=state["compute_ms"] * 1e-3,
        search=state["search_gb_per_s"] * 1e9,
        overlap=state["overlap"],
        kept=max(1, int(state["keep_percent"] / 100 * numbers)),
        approx_rank=state["approx_rank"],
        inner_steps=state["inner_steps"],
    )


def _model(state: dict[str, Any]) -> str:
    """Return the label of the model with these numbers, or "" if none has them."""
    names = Model._fields[1:]
    for label, *numbers in MODELS:
        if numbers == [state[name] for name in names]:
            return label
    return ""


def _summary(state: dict, facts: dict, own: Any, plain: float) -> str:
    """Say what a step of the chosen method takes, and which is faster."""
    words = f"{LABELS[own.name]} on {state['world_size']} ranks, "
    words += f"{facts['link'] or 'this link'}: {amount(own.step, 's')} a step "
    times = state["compute_ms"] * 1e-3, own.encoding, own.exposed
    pairs = zip(times, ("compute", "encode", "wait"), strict=True)
    parts = [f"{amount(time, 's')} {what}" for time, what in pairs if time > 0]
    words += f"({', '.join(parts)})"
    if own.name != "none" and own.step < plain:
        # Rounds a half up, as Math.round in JavaScript does, and unlike round().
        ratio = int(100 * plain / own.step + 0.5) / 100
        words += f", {ratio:.10g} times as fast as without"
    elif own.name != "none":
        words += f"; without it, {amount(plain, 's')}"
    words += f". A rank sends {amount(own.sent, 'B')}"
    if own.name != "none":
        return words + "."
    if facts["fastest"] == "none":
        return words + ". Nothing is faster here."
    return words + f". Fastest here: {LABELS[facts['fastest']]}."


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = Compression().state_names()
    models = [tuple(m[1:]) for m in MODELS] + [(7, 100, 3.5, 300, 0.7)]
    pairs = [link[1:] for link in links.LINKS.values()] + [(0.0, 3.0)]
    known = 1.0, 2, 20  # what LEARNS was measured with
    # Every fifth of all combinations: of the inner lists none has a multiple of 5
    # values, so all meet. A stride of 7 would leave out links, as there are 7 of them.
    all_of = itertools.product(
        LABELS, (2, 8, 1000), models, pairs, (True, False), (known, (33.3, 3, 7))
    )
    good = [
        (method, size, *model[:4], *pair, model[4], overlap, *settings)
        for method, size, model, pair, overlap, settings in all_of
    ][::5]
    start = dict(zip(keys, good[0], strict=True))
    wrong = {
        "method": ["gzip", ""],
        "world_size": [1, 1025, -4],
        "matrices": [0, 10_001],
        "width": [1, 70_000],
        "tokens": [0, 2 * 10**9],
        "approx_rank": [0, 65, 70_000],
        "inner_steps": [0, 100_001],
        "compute_ms": [0.0, 2e6],
        "alpha_us": [-1.0, 2e6],
        "gb_per_s": [0.0, 1e5],
        "search_gb_per_s": [0.0, 1e5],
        "keep_percent": [0.0, 100.5],
    }
    bad = [{**start, name: value} for name, values in wrong.items() for value in values]
    return [dict(zip(keys, values, strict=True)) for values in good] + bad
