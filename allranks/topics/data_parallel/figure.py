"""A step of nn.DataParallel: who holds what after each stage, and what moves."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture, table
from allranks.base.units import amount, whole
from allranks.live.ranks import Ranks
from allranks.topics.data_parallel.runs import play
from allranks.topics.data_parallel.sums import STAGES, Step, ring_bytes, shares
from allranks.topics.kit.explorable import Explorable

BOUNDS = {
    "batch_size": (1, 512),
    "num_devices": (1, 8),
    "param_mb": (1, 5000),
    "input_mb": (0, 10),
    "activation_mb": (0, 200),
    "output_mb": (0, 100),
    "stage": (0, 8),
    "memory_mb": (100, 80_000),
}
OPTIMIZERS = {"SGD": 0, "SGD with momentum": 1, "Adam": 2}  # numbers per parameter
MOST_PLAYED = 100_000  # MB on all virtual GPUs together; 8 KiB stand for each MB


class DataParallelForward(Explorable):
    """One training step of nn.DataParallel. A MB is 10**6 bytes.

    Traits:
        batch_size: samples in the whole batch.
        num_devices: devices in ``device_ids``.
        param_mb: the size of all parameters, in MB; gradients are as large.
        input_mb, output_mb: of one sample, in MB.
        activation_mb: what forward keeps of one sample for backward, in MB.
        optimizer: a key of ``OPTIMIZERS``.
        loss_inside: whether the module itself computes the loss and returns it.
        stage: the stage to look at, an index of ``STAGES``.
        memory_mb: what a device has room for, in MB.
    """

    name = "data_parallel"

    batch_size = traitlets.Int(32).tag(sync=True)
    num_devices = traitlets.Int(4).tag(sync=True)
    param_mb = traitlets.Int(400).tag(sync=True)
    input_mb = traitlets.Int(1).tag(sync=True)
    activation_mb = traitlets.Int(50).tag(sync=True)
    output_mb = traitlets.Int(20).tag(sync=True)
    optimizer = traitlets.Unicode("Adam").tag(sync=True)
    loss_inside = traitlets.Bool(False).tag(sync=True)
    stage = traitlets.Int(0).tag(sync=True)
    memory_mb = traitlets.Int(2000).tag(sync=True)

    @staticmethod
    def compute(**state: Any) -> dict[str, Any]:
        """Count what each device holds after each stage, and what each stage moves.

        ``memory[stage][device]`` has the MB of each of ``PARTS``, and ``moves[stage]``
        lists [from, to, MB]. ``waits[stage][device]`` says whether a device has nothing
        to do. ``runs_out[device]`` is the first stage in which it holds more than
        ``memory_mb``, or None. ``backward`` is the moment before the gradients are
        added up.

        Raises:
            ValueError: if a number lies outside of its ``BOUNDS``, or there is no such
                optimizer.

        >>> DataParallelForward().facts["fullest"]
        [2888, 968, 968, 968]
        """
        for name, (low, most) in BOUNDS.items():
            if whole(name, state[name], low) > most:
                raise ValueError(f"{name} must be at most {most}, not {state[name]}")
        if state["optimizer"] not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ValueError(f"no optimizer {state['optimizer']}: there are {known}")
        devices, param_mb = range(state["num_devices"]), state["param_mb"]
        room = state["memory_mb"]
        step = Step(
            shares(state["batch_size"], len(devices)),
            param_mb,
            *(state[f"{name}_mb"] for name in ("input", "activation", "output")),
            OPTIMIZERS[state["optimizer"]] * param_mb,
            state["loss_inside"],
        )
        memory = [[step.held(stage, i) for i in devices] for stage in STAGES]
        moves = [[list(move) for move in step.moves(stage)] for stage in STAGES]
        totals = [[sum(parts) for parts in row] for row in memory]
        # The batch comes from the host, over another link than between devices.
        between = [move for row in moves for move in row if move[0] != "host"]
        facts = {
            "shares": step.shares,
            "memory": memory,
            "moves": moves,
            "waits": [[step.waits(stage, i) for i in devices] for stage in STAGES],
            "totals": totals,
            "fullest": [max(column) for column in zip(*totals, strict=True)],
            "runs_out": [
                next((i for i, held in enumerate(column) if held > room), None)
                for column in zip(*totals, strict=True)
            ],
            "sent_by_0": sum(size for source, _, size in between if source == 0),
            "sent_to_0": sum(size for _, target, size in between if target == 0),
            "ddp": ring_bytes(len(devices), param_mb),
        }
        return {**facts, "summary": _summary(state, facts)}

    @staticmethod
    def picture(**state: Any) -> Picture:
        """Set a table of the memory of each device after each stage."""
        totals = DataParallelForward.compute(**state)["totals"]
        head = ["after", *(f"device {i}" for i in range(state["num_devices"]))]
        rows = [[name, *map(_mb, totals[i])] for i, name in enumerate(STAGES)]
        return table(head, rows)

    def measure(self) -> dict[str, Any]:
        """Let torch's class run the step on virtual GPUs, in a process of its own."""
        facts = self.facts
        if sum(facts["fullest"]) > MOST_PLAYED:
            most = _mb(MOST_PLAYED)
            raise ValueError(f"more than {most} on all devices cannot be played here")
        with Ranks(1) as ranks:
            [played] = ranks.run(play, self.state, quiet=True)
        summary = "nn.DataParallel on virtual GPUs holds and moves what the model says."
        for i, name in enumerate(STAGES):
            model = {"held": facts["totals"][i], "moved": facts["moves"][i]}
            found = played.get(name, model)  # one device alone has fewer stages
            for what in model:
                if found[what] != model[what]:
                    summary = f"{name}: {model[what]} {what} in the model, "
                    summary += f"{found[what]} on virtual GPUs (MB)."
        return {"stages": played, "summary": summary}


def _mb(size: float) -> str:
    return amount(size * 1e6, "B")


def _summary(state: dict, facts: dict) -> str:
    stage, cut, full = STAGES[state["stage"]], facts["shares"], facts["fullest"]
    inside, alone = state["loss_inside"], len(cut) == 1
    says = {
        "start": "Between steps, device 0 holds all there is.",
        "scatter": "The batch comes from the host, a share for each device.",
        "replicate": "Device 0 sends all weights to the others that have a share.",
        "parallel_apply": "Each replica runs forward on its share.",
        "gather": "All outputs come to device 0.",
        "loss": "Device 0 computes the loss of the whole batch, alone.",
        "backward": "Gradients of the outputs go out; each replica has gradients of "
        "all weights.",
        "reduce": "Device 0 takes in all gradients and adds them up. No replica is "
        "left.",
        "step": "The optimizer steps on device 0. The others are empty.",
    }
    if inside:
        says["gather"] = "One number per replica comes to device 0."
        # A mean of means is the mean of all only if the shares are equal.
        even = "." if len(set(cut)) == 1 else ": not that of the batch, shares differ."
        says["loss"] = f"The loss is the mean of the replicas' losses{even}"
        says["backward"] = "Each replica has gradients of all weights."
    if alone:
        for name in "replicate", "gather", "reduce":
            says[name] = "One device does it all: nothing moves."
    # The step ends where memory does, so the stages after it are not reached.
    ends = [at for at in facts["runs_out"] if at is not None]
    failed = min(ends, default=len(STAGES))
    if state["stage"] == failed:
        says[stage] += " It does not fit: the step ends here."
    elif state["stage"] > failed:
        says[stage] = f"Not reached, because {STAGES[failed]} ran out of memory."
    holds = "would hold" if ends else "holds"
    idle = state["num_devices"] - len(cut)
    words = f"Shares of {', '.join(map(str, cut))} samples"
    words += f"; {idle} of {state['num_devices']} devices without." if idle else "."
    words += f" Stage {stage}: {says[stage]} Device 0 {holds} up to {_mb(full[0])}"
    words += " in a step"
    words += f", device 1 up to {_mb(full[1])}." if len(full) > 1 else "."
    return words


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    keys = DataParallelForward.state_names()
    sizes = (1, 1), (1, 4), (5, 4), (32, 4), (512, 8), (7, 3), (10, 8)
    models = (1, 0, 0, 0), (400, 1, 50, 20), (5000, 10, 200, 100)
    options = itertools.product(OPTIMIZERS, (True, False))
    good = [
        (*size, *model, *option, (i + j) % 9)
        for i, (size, option) in enumerate(itertools.product(sizes, options))
        for j, model in enumerate(models)
    ]
    many = [(13, 5, 3, 2, 1, 4, "SGD", i % 2 > 0, i // 2) for i in range(18)]
    many += [(n, 8, 100, 1, 1, 1, "Adam", False, 3) for n in range(1, 41)]
    first = 32, 4, 400, 1, 50, 20, "Adam", False, 2
    wrong = (0, -1, 513), (0, 9), (0, 5001), (-1, 11), (-1, 201), (-1, 101), ("Rprop",)
    bad = [
        (*first[:i], value, *first[i + 1 :])
        for i, values in (*enumerate(wrong), (8, (-1, 9, 100)))
        for value in values
    ]
    bad += [(0, 9, *first[2:]), (40, 9, *first[2:]), (0, *first[1:8], 9)]
    rooms = itertools.cycle((100, 969, 2000, 2888, 80_000))
    states = [(*state, next(rooms)) for state in (*good, *many, *bad)]
    states += [(*first, room) for room in (99, 80_001)]
    return [dict(zip(keys, state, strict=True)) for state in states]
