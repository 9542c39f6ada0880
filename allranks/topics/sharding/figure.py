"""The brick wall: a step of DDP and of ZeRO, brick by brick."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.units import amount, whole
from allranks.topics.kit.explorable import Explorable
from allranks.topics.sharding import picture
from allranks.topics.sharding.sums import (
    PRECISIONS,
    STAGES,
    Moment,
    held,
    memory,
    moves,
    peak,
    sent,
    walk,
)

BOUNDS = {
    "stage": (0, 3),
    "world_size": (2, 8),
    "num_layers": (2, 8),
    "gpu_gb": (8, 288),
    "step": (0, 10**6),
}
FEWEST, MOST = 0.1, 500  # billions of parameters


class BrickWall(Explorable):
    """A step of training, of which each rank holds what a stage leaves it.

    Traits:
        stage: an index of ``STAGES``: what the knife cuts.
        world_size, num_layers: at most 8 each. All layers are equal.
        billions: the number of parameters, in 10**9.
        gpu_gb: the memory of a GPU, in 10**9 bytes.
        precision: a key of ``PRECISIONS``.
        reshard: ``reshard_after_forward``, for ZeRO-3.
        step: the moment to look at, an index of ``walk``.
    """

    name = "sharding"

    stage = traitlets.Int(0).tag(sync=True)
    world_size = traitlets.Int(4).tag(sync=True)
    num_layers = traitlets.Int(4).tag(sync=True)
    billions = traitlets.Float(7.0).tag(sync=True)
    gpu_gb = traitlets.Int(80).tag(sync=True)
    precision = traitlets.Unicode([*PRECISIONS][1]).tag(sync=True)
    reshard = traitlets.Bool(True).tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    @staticmethod
    def compute(
        billions: float, gpu_gb: int, precision: str, reshard: bool, **sizes: int
    ) -> dict[str, Any]:
        """Say what a rank holds and sends in each moment of the step.

        ``moments`` lists [name, layer, weights, gradients] as ``walk`` does,
        ``memory`` the bytes of each of ``KINDS``, and ``sent`` the bytes that have been
        sent up to a moment's end. ``each`` has the peak and the bytes sent of each of
        ``STAGES``, ``peaks`` what that peak is made of, by kind, and ``fits`` is the
        first of them that fits, or None.

        Raises:
            ValueError: if a number is out of bounds, or there is no such precision.

        >>> facts = BrickWall().facts
        >>> [round(sent / facts["each"][0][1], 2) for _, sent in facts["each"]]
        [1.0, 1.0, 1.0, 1.5]
        """
        for name, value in {**sizes, "gpu_gb": gpu_gb}.items():
            low, most = BOUNDS[name]
            if whole(name, value, low) > most:
                raise ValueError(f"{name} must be at most {most}, not {value}")
        if not FEWEST <= billions <= MOST:
            raise ValueError(f"billions must be from {FEWEST} to {MOST}")
        if precision not in PRECISIONS:
            known = "; ".join(PRECISIONS)
            raise ValueError(f"no precision {precision}: there are {known}")
        stage, shards, num_layers, step = map(sizes.get, _SIZES)
        given = 1e9 * billions, shards, PRECISIONS[precision]
        num_params, numbers = given[0], given[2]
        moments = walk(stage, num_layers, reshard)
        steps = [moves(moment, stage, *given) for moment in moments]
        each = [
            [
                peak(one, num_params, num_layers, shards, numbers, reshard),
                sent(one, *given[:2], 1, numbers, reshard).inside,
            ]
            for one in range(len(STAGES))
        ]
        peaks = [
            max(
                [memory(at, one, *given) for at in walk(one, num_layers, reshard)],
                key=sum,
            )
            for one in range(len(STAGES))
        ]
        # Without ``reshard`` ZeRO-3 may need more than ZeRO-2, so each is looked at.
        fit = [one for one, (most, _) in enumerate(each) if most <= 1e9 * gpu_gb]
        facts = {
            "moments": [list(moment) for moment in moments],
            "waits": [moment.waits for moment in moments],
            "memory": [list(memory(moment, stage, *given)) for moment in moments],
            "sent": [sum(steps[: i + 1]) for i in range(len(steps))],
            "between": sum(held(stage, *given)),
            "each": each,
            "peaks": [list(kinds) for kinds in peaks],
            "fits": fit[0] if fit else None,
            "at": min(step, len(moments) - 1),
        }
        return {**facts, "summary": _summary(stage, sizes, gpu_gb, reshard, facts)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Draw what each rank holds at most, for each stage."""
        rows = []
        for stage, name in enumerate(STAGES):
            facts = BrickWall.compute(**{**state, "stage": stage})
            rows.append((name, facts["peaks"][stage], facts["sent"][-1]))
        return picture.tanks(state["world_size"], 1e9 * state["gpu_gb"], rows)


_SIZES = "stage", "world_size", "num_layers", "step"


def _bytes(num: float) -> str:
    return amount(num, "B")


def _summary(stage: int, sizes: dict, gpu_gb: int, reshard: bool, facts: dict) -> str:
    """Say what the stage costs, and what happens in the moment."""
    most, num = facts["each"][stage]
    share = num / facts["each"][0][1]
    fits = " of" if most <= 1e9 * gpu_gb else ", more than"
    words = f"{STAGES[stage]} on {sizes['world_size']} ranks: each rank needs up to "
    words += f"{_bytes(most)}{fits} {gpu_gb} GB, and sends {_bytes(num)} in a step"
    if stage:
        times = round(100 * share) / 100
        words += (
            ", as much as DDP" if times == 1 else f", {times:g} times as much as DDP"
        )
    moment = Moment(*facts["moments"][facts["at"]])
    return f"{words}. {_say(moment, stage, sizes['num_layers'], reshard)}"


def _say(moment: Moment, stage: int, num_layers: int, reshard: bool) -> str:
    """Say what happens in a moment."""
    name, k, cut = moment.name, moment.layer, stage == 3
    if name == "forward":
        words = f"Layer {k} runs forward"
        words += f", layer {k + 1} arrives" if "a" in moment.weights else ""
        return words + (f", layer {k - 1} is let go." if cut and reshard and k else ".")
    if name == "backward":
        words = f"Layer {k} runs backward"
        words += f", layer {k - 1} arrives" if "a" in moment.weights else ""
        if k == num_layers - 1:
            return f"{words}."
        how = "stay" if stage == 1 else "are added up" if stage == 0 else "collapse"
        return f"{words}, the gradients of layer {k + 1} {how}."
    again = cut and reshard  # forward has let it go, and backward begins with it
    return {
        "start": "The first layer arrives, and all wait for it."
        if cut
        else "Every rank has all the weights.",
        "loss": "The last layer arrives again for backward, and all wait for it."
        if again
        else "The loss is computed.",
        "reduce": f"{'All' if stage == 1 else 'The last'} gradients are added up, "
        "and all wait for them.",
        "step": "The optimizer updates "
        + ("each rank's part." if stage else "all weights."),
        "end": "The new weights go to all ranks, which wait for them."
        if stage in (1, 2)
        else "The gradients are freed.",
    }[name]


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = BrickWall.state_names()
    sizes = (2, 2, 0.1, 8), (4, 6, 7.0, 80), (8, 8, 500.0, 288), (3, 5, 1.3, 24)
    sizes = (*sizes, (5, 7, 70.6, 141), (7, 3, 13.0, 80))
    options = itertools.product(range(4), sizes, PRECISIONS, (True, False))
    good = [
        (stage, *size, *option, (i * 7) % 23)
        for i, (stage, size, *option) in enumerate(options)
    ]
    first = (3, 4, 6, 7.0, 80, next(iter(PRECISIONS)), True)
    good += [(*first, step) for step in range(20)]
    good += [(*first[:-1], False, step) for step in range(20)]
    good += [(stage, *first[1:], step) for stage in range(3) for step in range(18)]
    wrong = (-1, 4), (1, 9), (1, 9, 0), (0.0, 0.05, 501.0, -7.0), (7, 289, 0)
    wrong = (*wrong, ("fp8", "", "float64"))
    bad = [
        (*first[:i], value, *first[i + 1 :], 0)
        for i, values in enumerate(wrong)
        for value in values
    ]
    bad += [(*first, -1), (*first, 10**6 + 1), (9, 9, *first[2:], 0)]
    bad += [(stage, 1, *first[2:], 3) for stage in range(4)]
    return [dict(zip(keys, state, strict=True)) for state in (*good, *bad)]
