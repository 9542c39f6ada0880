"""Buckets and overlap: the timeline of a step of DDP, estimated and measured."""

import itertools
from pathlib import Path
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.buckets import models, runs, sums, traces
from allranks.topics.buckets.picture import timeline
from allranks.topics.kit.explorable import Explorable

POINTS = 41  # of the curve: caps of 2^(k / 4) MiB, from 1 to 1024
MOST = 65536  # samples per rank, ranks
LEAST, LONGEST = 0.001, 1e6  # TFLOP/s and GB/s; µs per message
TINY = 5e-9  # seconds; from here on, the summary shows more than 0 µs
# Recorded on two live ranks, without what took less than 0.1 ms; a button shows it.
EXAMPLE = traces.lanes(Path(__file__).with_name("example_trace.json").read_text("utf8"))
MOST_RANKS, MOST_BYTES, MOST_MFLOP = 8, 100e6, 20_000  # that real ranks may run


class Buckets(Explorable):
    """A model, its gradients in buckets, and a machine with links.

    Traits:
        model: a key of ``allranks.topics.buckets.models.MODELS``, or "own".
        layers: of "own", the numbers:MFLOP of each layer, forward and per sample.
        batch_size: samples per rank.
        tflops: 10¹² floating-point operations per second and rank.
        world_size: ranks in the ring.
        alpha_us: α, µs per message.
        gb_per_s: B, 10⁹ bytes per second and link.
        bucket_cap_mb: DDP's argument, in MiB; None for its default.
        trace: what ``traces.lanes`` returns, or None.
    """

    name = "buckets"

    # The button can run what it begins with: two ranks, on machines like CPU cores.
    model = traitlets.Unicode("mlp").tag(sync=True)
    layers = traitlets.Unicode("8000000:16, 1000000:16").tag(sync=True)
    batch_size = traitlets.Int(64).tag(sync=True)
    tflops = traitlets.Float(0.05).tag(sync=True)
    world_size = traitlets.Int(2).tag(sync=True)
    alpha_us = traitlets.Float(100).tag(sync=True)
    gb_per_s = traitlets.Float(1).tag(sync=True)
    bucket_cap_mb = traitlets.Float(None, allow_none=True).tag(sync=True)
    trace = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)

    @staticmethod
    def compute(
        model: str,
        layers: str,
        bucket_cap_mb: float | None,
        trace: dict | None,
        **machine: Any,
    ) -> dict[str, Any]:
        """Lay out the step, try other bucket sizes, and read the trace's lanes.

        Raises:
            ValueError: if there is no such model, or a number is out of bounds.

        >>> facts = Buckets().facts
        >>> len(facts["buckets"]), facts["exposed"] < facts["sending"]
        (3, True)
        """
        chosen = models.layers_of(model, layers)
        for name in "batch_size", "world_size":
            if whole(name, machine[name], low=1) > MOST:
                raise ValueError(f"{name} must be at most {MOST}")
        for name in "tflops", "gb_per_s":
            if machine[name] <= 0:
                raise ValueError(f"{name} must be above 0, not {machine[name]:g}")
            if machine[name] < LEAST:
                raise ValueError(f"{name} must be at least {LEAST}")
        lows = {"alpha_us": machine["alpha_us"], "bucket_cap_mb": bucket_cap_mb or 0}
        for name, value in lows.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative: {value:g}")
        if machine["alpha_us"] > LONGEST:
            raise ValueError(f"alpha_us must be at most {LONGEST:.0f}")
        if trace is not None and not (trace.get("compute") and trace.get("comm")):
            raise ValueError(
                "trace must be what allranks.topics.buckets.traces.lanes returns"
            )
        step = _step(chosen, bucket_cap_mb, **machine)
        exposed, size = step.total - step.computed, machine["world_size"]
        others = (_step(chosen, cap, **machine) for cap in _curve())
        curve = [other.total - other.computed for other in others]
        num_bytes = sum(layer[1] for layer in step.layers)
        summary = (
            f"{_count(size, 'rank')}, {amount(num_bytes, 'B')} of gradients in "
            f"{_count(len(step.buckets), 'bucket')}. "
            f"Forward takes {amount(step.forward, 's')}, "
            f"backward {amount(step.backward, 's')}, "
            f"all_reduce {amount(step.sending, 's')}; "
            f"{amount(exposed, 's')} of it is exposed. "
            f"A step takes {amount(step.total, 's')}, {_share(step)} of it computing."
        )
        seen = None
        if trace is not None:
            # In ms. Collectives may overlap each other, so their time is that of their
            # union; exposed is what no computing covers.
            busy, sent = trace["compute"], trace["comm"]
            seen = {
                "compute": sum(b - a for a, b in busy) / 1e3,
                "sending": sum(b - a for a, b in traces.union(sent)) / 1e3,
                "exposed": traces.uncovered(sent, busy) / 1e3,
                "length": max(span[1] for span in (*busy, *sent)) / 1e3,
            }
            summary += (
                f" In the trace, backward computes {amount(seen['compute'], 's')}; "
                f"{len(sent)} collectives take {amount(seen['sending'], 's')}, "
                f"{amount(seen['exposed'], 's')} of it exposed."
            )
        return {
            "layers": [list(layer) for layer in step.layers],
            "buckets": [list(bucket) for bucket in step.buckets],
            "forward": step.forward,
            "backward": step.backward,
            "sending": step.sending,
            "exposed": exposed,
            "total": step.total,
            "after_backward": step.computed + step.sending,
            "curve": curve,  # seconds exposed, with each cap of _curve
            "seen": seen,
            "summary": summary,
        }

    @staticmethod
    def picture(
        model: str,
        layers: str,
        bucket_cap_mb: float | None,
        trace: dict | None,
        **machine: Any,
    ) -> Picture:
        """Draw the layers' backward above the buckets, over time."""
        chosen = models.layers_of(model, layers)
        return timeline("A step of DDP", _step(chosen, bucket_cap_mb, **machine))

    def measure(self) -> dict[str, Any]:
        """Let real ranks run stand-ins for the layers, and profile a step."""
        layers = models.layers_of(self.model, self.layers)
        facts, size = self.facts, self.world_size
        if not 2 <= size <= MOST_RANKS:
            raise ValueError(f"world_size must be 2 to {MOST_RANKS} to be really run")
        num_bytes = sum(layer[1] for layer in facts["layers"])
        # Backward computes twice what forward does, so a step is three forwards.
        mflop = 3 * self.batch_size * sum(layer.mflop for layer in layers)
        if num_bytes > MOST_BYTES or mflop > MOST_MFLOP:
            raise ValueError(
                f"{amount(num_bytes, 'B')} of gradients and {mflop / 1e3:.3g} GFLOP "
                f"are too much to try: at most {amount(MOST_BYTES, 'B')} and "
                f"{MOST_MFLOP / 1e3:g} GFLOP"
            )
        with Ranks(size) as ranks:
            work = layers, self.batch_size, self.bucket_cap_mb
            found = ranks.run(runs.measure, *work, timeout=90)[0]
        state = {**self.state, "trace": found["trace"]}
        seen = self.compute(**state)["seen"]
        plan = [bucket[0] for bucket in facts["buckets"]]
        same = "" if plan == found["bucket_bytes"] else "not "
        same += "as the model says"
        ratio = seen["compute"] / facts["backward"]
        return {
            **found,
            "seen": seen,
            "ratio": ratio,
            "summary": f"{size} live ranks ran stand-ins with the same parameters and "
            f"arithmetic: {len(found['bucket_bytes'])} buckets, {same}. Backward "
            f"computed {amount(seen['compute'], 's')}, as with "
            f"{self.tflops / ratio:.2g} TFLOP/s; "
            f"all_reduce took {amount(seen['sending'], 's')}, of which "
            f"{amount(seen['exposed'], 's')} were exposed.",
        }


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _curve() -> list[float]:
    return [2 ** (k / 4) for k in range(POINTS)]


def _share(step: sums.Step) -> str:
    """Write the share of a step that is computing; a visible part is never 0 %."""
    percent = int(100 * (step.computed / step.total if step.total else 1) + 0.5)
    if percent == 100 and step.total - step.computed >= TINY:
        return "over 99 %"
    return "under 1 %" if percent == 0 and step.computed >= TINY else f"{percent} %"


def _step(
    layers: list[models.Layer],
    cap_mb: float | None,
    batch_size: int,
    tflops: float,
    world_size: int,
    alpha_us: float,
    gb_per_s: float,
) -> sums.Step:
    """Convert the traits to bytes and seconds, and lay out the step."""
    link = world_size, alpha_us * 1e-6, gb_per_s * 1e9
    return sums.step(layers, batch_size, tflops * 1e12, *link, sums.caps(cap_mb))


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    own = "1:0", "1000000:20, 8000000:20.5 ,262144:3", ",".join(["300000:1.5"] * 40)
    chosen = [(name, "") for name in models.MODELS]
    chosen += [("own", layers) for layers in own]
    trace = {"compute": [[0, 2.5], [3, 7]], "comm": [[2, 4, "a"], [6, 9.25, "b"]]}
    # Taken in turn, so that the cases do not triple.
    traced = itertools.cycle([None, trace, None])
    bad = ["", "1:2,", "x:1", "0:1", "1:-1", "1:1e3", "9:1;2:1", "1:2," * 40, "1"]
    good = Buckets().state | {"trace": None}
    machines = (1, 1.5, 1, 0.1), (2, 0, 450, 300), (999, 9, 7, 9)
    states = [
        {**good, "model": model, "layers": text, "bucket_cap_mb": cap}
        | {"trace": next(traced)}
        | {"world_size": size, "alpha_us": alpha, "gb_per_s": gb, "tflops": speed}
        for model, text in chosen
        for cap in (None, 0.0, 0.3, 1.0, 25.0, 1e5)
        for size, alpha, gb, speed in machines
    ]
    states += [{**good, "model": "own", "layers": text} for text in bad]
    states += [{**good, "batch_size": number} for number in (1, 7, 64, 512, 65536)]
    wrong = {"model": ["", "bert"], "world_size": [0, 70_000]}
    wrong |= {"batch_size": [-1, 10**9]}
    wrong |= {"tflops": [0.0, 1e-4], "gb_per_s": [-2.0], "alpha_us": [-1.0, 1e7, 1e6]}
    wrong |= {"bucket_cap_mb": [-0.5], "trace": [{}, {"compute": [[0, 1]], "comm": []}]}
    for name, values in wrong.items():
        states += [{**good, name: value} for value in values]
    for number in range(90):
        states.append({**good, "batch_size": number + 1, "bucket_cap_mb": number / 3})
    # A test of refusals takes the last 40 states, so these have to be the wrong ones.
    return states[-90:] + states[:-90]
