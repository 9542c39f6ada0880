"""The mountain: what a training step holds in memory, by kind, over its time."""

import itertools
import math
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.units import amount, whole
from allranks.topics.kit.explorable import Explorable
from allranks.topics.memory import picture, sums

MOST = {"dim": 65536, "layers": 160, "heads": 512, "kv_heads": 512, "hidden": 262144}
MOST |= {"tokens": 131072, "words": 1000000, "batch_size": 4096, "loss_chunks": 1024}
MOST_GB = 1000000.0
CHUNKS = 16  # what the switch sets
PLACES = {  # where a peak may be; a checkpoint's second forward is part of backward
    "forward": "in forward",
    "loss": "at the loss",
    "backward": "in backward",
    "step": "in the optimizer's step",
}
TABLES = {
    "family": sums.FAMILIES,
    "precision": sums.PRECISIONS,
    "optimizer": sums.OPTIMIZERS,
    "checkpointing": sums.CHECKPOINTING,
}
FIRST = sums.MODELS["llama1b"][1]  # its vocabulary is large


class Mountain(Explorable):
    """A model, how it is trained, a GPU, and a moment of a step.

    Traits:
        family, dim, layers, heads, kv_heads, hidden, tokens, words, tied: a model's
            sizes, as ``sums.Model`` has them.
        batch_size, precision, optimizer, checkpointing, loss_chunks, release: how it
            is trained, as in ``sums.Training``.
        gpu_gb: 10⁹ bytes of the GPU's memory.
        moment: the number of a part of the step.
    """

    name = "memory"

    family = traitlets.Unicode(FIRST.family).tag(sync=True)
    dim = traitlets.Int(FIRST.dim).tag(sync=True)
    layers = traitlets.Int(FIRST.layers).tag(sync=True)
    heads = traitlets.Int(FIRST.heads).tag(sync=True)
    kv_heads = traitlets.Int(FIRST.kv_heads).tag(sync=True)
    hidden = traitlets.Int(FIRST.hidden).tag(sync=True)
    tokens = traitlets.Int(FIRST.tokens).tag(sync=True)
    words = traitlets.Int(FIRST.words).tag(sync=True)
    tied = traitlets.Bool(FIRST.tied).tag(sync=True)
    batch_size = traitlets.Int(6).tag(sync=True)
    precision = traitlets.Unicode("mixed").tag(sync=True)
    optimizer = traitlets.Unicode("adam").tag(sync=True)
    checkpointing = traitlets.Unicode("none").tag(sync=True)
    loss_chunks = traitlets.Int(1).tag(sync=True)
    release = traitlets.Bool(False).tag(sync=True)
    gpu_gb = traitlets.Float(80).tag(sync=True)
    moment = traitlets.Int(19).tag(sync=True)

    @staticmethod
    def compute(gpu_gb: float, moment: int, **state: Any) -> dict[str, Any]:
        """Say what is held in each part of the step, where the peak is, and if it fits.

        ``spans`` lists the parts as [phase, name, start, end, bytes by kind, blocks];
        ``peak`` and ``moment`` are numbers of parts. ``over`` is how many bytes do not
        fit; ``longer`` is the share by which checkpoints lengthen the step.

        Raises:
            ValueError: if a number is out of bounds, or heads do not divide the width.

        >>> facts = Mountain().facts
        >>> facts["spans"][facts["peak"]][1], facts["over"] > 0
        ('loss, backward', True)
        """
        for name, table in TABLES.items():
            if state[name] not in table:
                raise ValueError(f"{name} is {state[name]}: there are {_list(table)}")
        for name, most in MOST.items():
            if whole(name, state[name], 1) > most:
                raise ValueError(f"{name} is {state[name]}: at most {most} fit here")
        if not 1 <= gpu_gb <= MOST_GB:
            raise ValueError(f"gpu_gb must be 1 to {MOST_GB:.0f}")
        whole("moment", moment, 0)
        model, training = _split(state)
        spans = sums.step(model, training)
        num_params = sum(sum(layer.numbers) for layer in sums.layers(model))
        top, now = sums.peak(spans), min(moment, len(spans) - 1)
        # What checkpoints cost: the same step without them.
        plain = sums.step(model, training._replace(checkpointing="none"))
        over = max(0.0, sum(spans[top].held) - 1e9 * gpu_gb)
        size = sums.PRECISIONS[training.precision].activation
        tokens = training.batch_size * model.tokens
        each, place = sum(sums.per_parameter(training)), _place(spans[now])
        capital = place[0].upper() + place[1:]
        fits = f"{_bytes(over)} too much for" if over else "it fits into"
        return {
            "num_params": num_params,
            "per_parameter": sums.per_parameter(training),
            "spans": [list(span) for span in spans],
            "peak": top,
            "moment": now,
            "over": over,
            "longer": spans[-1].end / plain[-1].end - 1,
            "saved": [
                [what, tokens * numbers * (4 if exact else size)]
                for _, what, numbers, exact in sums.saved(model)
            ],
            "summary": f"Training holds {_short(each)} bytes for each of "
            f"{_count(num_params)} parameters, {_bytes(num_params * each)}. "
            f"The peak, {_total(spans[top])}, is {_place(spans[top])}: "
            f"{fits} {_bytes(1e9 * gpu_gb)}."
            + ("" if now == top else f" {capital}: {_total(spans[now])}."),
        }

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Draw the mountain, the GPU's memory, and name the peak."""
        spans = [sums.Span(*span) for span in Mountain.compute(**state)["spans"]]
        return picture.mountain("A training step's memory", spans, state["gpu_gb"])


def _split(state: dict[str, Any]) -> tuple[sums.Model, sums.Training]:
    """Sort a state into the model and its training.

    A GPT has keys and values for all heads, and an MLP of four times its width.
    """
    model, training = (
        kind(**{name: state[name] for name in kind._fields})
        for kind in (sums.Model, sums.Training)
    )
    if model.family == "gpt":
        model = model._replace(kv_heads=model.heads, hidden=4 * model.dim)
    return model, training


def _list(names: dict) -> str:
    return ", ".join(names)


def _bytes(number: float) -> str:
    return amount(number, "B")


def _total(span: sums.Span) -> str:
    return amount(sum(span.held), "B")


def _short(number: float) -> str:
    """Write at most two decimals; a half is rounded up, as in JavaScript."""
    return f"{math.floor(number * 100 + 0.5) / 100:.10g}"


def _count(number: int) -> str:
    """Write a number of parameters.

    >>> _count(124_439_808), _count(8_030_261_248), _count(700)
    ('124.44 million', '8.03 billion', '0 million')
    """
    scale, name = (1e9, "billion") if number >= 1e9 else (1e6, "million")
    return f"{_short(number / scale)} {name}"


def _place(span: sums.Span) -> str:
    """Say where in the step a part is."""
    where = PLACES["backward" if span.phase == "again" else span.phase]
    if span.phase in ("loss", "step"):  # of "loss, backward", the second word
        return where + span.name.partition("loss")[2]
    return f"{where}, {span.name}{' again' if span.phase == 'again' else ''}"


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    good, states = Mountain().state, []
    models = [model._asdict() for _, model in sums.MODELS.values()]
    models.append({**models[0], "layers": 1, "heads": 1, "kv_heads": 1, "tied": False})
    models.append({**models[0], "heads": 6, "kv_heads": 5, "hidden": 7})
    models.append({**models[3], "dim": 96, "heads": 6, "kv_heads": 3, "hidden": 100})
    ways = itertools.product(
        sums.CHECKPOINTING, (1, 7), (False, True), sums.PRECISIONS, models
    )
    for i, (again, chunks, release, precision, model) in enumerate(ways):
        optimizer = list(sums.OPTIMIZERS)[i % len(sums.OPTIMIZERS)]
        batch, gpu = (1, 3, 64, 4096)[i % 4], (1.0, 24.0, 80.5, 1e6)[i // 2 % 4]
        states.append({**good, **model, "moment": i, "gpu_gb": gpu})
        states[-1] |= {"batch_size": batch, "optimizer": optimizer, "release": release}
        states[-1] |= {"checkpointing": again, "loss_chunks": chunks}
        states[-1] |= {"precision": precision}
    wrong = {name: [0, -1, most + 1] for name, most in MOST.items()}
    wrong |= {name: ["", "None"] for name in TABLES}
    wrong |= {"gpu_gb": [0.0, -5.0, 2e6], "moment": [-1], "heads": [3, 0]}
    wrong["kv_heads"] = [3, 64]
    for name, values in wrong.items():
        states += [{**good, name: value} for value in values]
    return states
