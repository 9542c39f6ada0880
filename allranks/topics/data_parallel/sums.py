"""One step of nn.DataParallel: who holds what, and what it moves."""

from typing import NamedTuple


def step_bytes(
    num_devices: int, param_bytes: int, output_bytes: int, buffer_bytes: int = 0
) -> list[tuple[int, int]]:
    """Return the bytes that each device sends to and receives from the others.

    In a step, replicate sends parameters and buffers from device 0 to the others, and
    gather brings the outputs back to it. In backward the gradients of the outputs go
    out again, and those of the parameters come in. The batch comes from the host and
    is not counted.

    Args:
        num_devices: in ``device_ids``.
        param_bytes: of all parameters; their gradients are as large.
        buffer_bytes: of all buffers.
        output_bytes: of the whole batch's outputs, cut into equal shares.
    Raises:
        ValueError: if num_devices < 1, or the outputs cannot be cut evenly.
    Source:
        torch/nn/parallel/data_parallel.py and _functions.py, and the tests, which
        count what the real class moves between virtual GPUs.

    >>> step_bytes(4, param_bytes=100, output_bytes=40)
    [(330, 330), (110, 110), (110, 110), (110, 110)]
    """
    if num_devices < 1 or output_bytes % num_devices:
        raise ValueError(f"{output_bytes} bytes on {num_devices} devices: no even cut")
    share = output_bytes // num_devices
    # Of another device: it sends gradients and outputs, and receives weights, buffers
    # and the gradients of its outputs. Device 0 is at the other end of each of these.
    sent, received = param_bytes + share, param_bytes + buffer_bytes + share
    others = num_devices - 1
    return [(others * received, others * sent), *[(sent, received)] * others]


def ring_bytes(world_size: int, num_bytes: int) -> float:
    """Return the bytes that each rank sends, and receives, in a ring all-reduce.

    Args:
        world_size: number of ranks.
        num_bytes: n, the size of the buffer on each rank.

    Raises:
        ValueError: if world_size < 1.
    Source:
        Patarasuk & Yuan, JPDC 69(2), 2009: 2(W-1) messages of n/W bytes each.

    >>> ring_bytes(4, 100)
    150.0
    """
    if world_size < 1:
        raise ValueError(f"world_size {world_size}: must be at least 1")
    return 2 * (world_size - 1) * num_bytes / world_size


STAGES = "start", "scatter", "replicate", "parallel_apply", "gather", "loss"
STAGES += "backward", "reduce", "step"
PARTS = "weights", "optimizer state", "gradients", "inputs", "activations"
PARTS += "outputs", "log-probabilities"


def shares(num_samples: int, num_devices: int) -> list[int]:
    """Count the samples of each device that gets any, cut as ``torch.chunk`` does.

    >>> shares(32, 4), shares(5, 4)
    ([8, 8, 8, 8], [2, 2, 1])
    """
    size = -(-num_samples // num_devices)  # as torch.chunk does it; a test compares
    starts = range(0, num_samples, size)
    return [min(size, num_samples - start) for start in starts]


class Step(NamedTuple):
    """One training step of nn.DataParallel, in bytes or in any other unit.

    Args:
        shares: samples of each device that has any.
        params: size of all parameters.
        inputs, activations, outputs: sizes for one sample; ``activations`` is what
            forward keeps for backward, apart from the inputs and the weights.
        optimizer: size of the optimizer's state.
        loss_inside: whether the module itself computes the loss and returns it.
    Source:
        torch/nn/parallel/data_parallel.py, _functions.py and comm.py; the tests measure
        torch's class on virtual GPUs.
    """

    shares: list[int]
    params: int
    inputs: int
    activations: int
    outputs: int
    optimizer: int
    loss_inside: bool

    def held(self, stage: str, device: int) -> list[int]:
        """Return the size of each of ``PARTS`` that a device holds after a stage.

        ``backward`` is the moment before the gradients are added up. Within a stage,
        copies may take more. Labels and single numbers, such as a loss, don't count.

        Args:
            stage: one of ``STAGES``.
            device: its index in ``device_ids``.

        >>> Step([2, 2], 100, 0, 1, 5, 200, False).held("loss", 0)
        [100, 200, 0, 0, 2, 20, 20]
        """
        # at: 2 replicate, 3 parallel_apply, 4 gather, 5 loss, 6 backward, 7 reduce.
        at, home = STAGES.index(stage), device == 0
        own = self.shares[device] if device < len(self.shares) else 0
        mine = own * self.outputs
        everything = sum(self.shares) * self.outputs if home else 0
        if self.loss_inside:
            outputs, kept = 0, mine if 3 <= at <= 5 else 0
        else:
            outputs = mine if at == 3 else everything if 4 <= at <= 7 else 0
            kept = everything if stage == "loss" else 0
        copied = own and 2 <= at <= 5
        return [
            self.params if home or copied else 0,
            self.optimizer if home else 0,
            self.params if own and (at == 6 or (home and at == 7)) else 0,
            own * self.inputs if 1 <= at <= 5 else 0,
            own * self.activations if 3 <= at <= 5 else 0,
            outputs,
            kept,
        ]

    def waits(self, stage: str, device: int) -> bool:
        """Tell whether a device has nothing to do in a stage of the step.

        >>> step = Step([2, 2], 100, 0, 1, 5, 200, False)
        >>> [name for name in STAGES if step.waits(name, 1)]
        ['loss', 'step']
        """
        alone = stage in ("loss", "step")  # device 0 does these for all
        return stage != "start" and device >= (1 if alone else len(self.shares))

    def moves(self, stage: str) -> list[tuple[str | int, int, int]]:
        """List what a stage moves as (from, to, size); from may be "host".

        >>> Step([2, 2], 100, 0, 1, 5, 200, False).moves("gather")
        [(1, 0, 10)]
        """
        outputs = 0 if self.loss_inside else self.outputs
        found = []
        for device, own in enumerate(self.shares):
            found += {
                "scatter": [("host", device, own * self.inputs)],
                "replicate": [(0, device, self.params)],
                "gather": [(device, 0, own * outputs)],
                "backward": [(0, device, own * outputs)],
                "reduce": [(device, 0, self.params)],
            }.get(stage, [])
        return [move for move in found if move[0] != move[1] and move[2]]
