"""Run one step of torch's own nn.DataParallel on virtual GPUs, and measure its memory.

The model is a stand-in that keeps exactly as many bytes as it is told. That allows the
sizes of real networks to be scaled down: ``BYTES_PER_MB`` bytes stand for a megabyte.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import comm

# By name: "vgpu" beside "torch" makes cloudpickle send torch.vgpu, where it exists.
from allranks.vgpu import clear_events, events, plugged_in

BYTES_PER_MB = 8 * 1024  # large compared with the 512 bytes that a single number takes
FLOATS = BYTES_PER_MB // 4


class _Layers(torch.autograd.Function):
    """Keep what a network's forward keeps: input, weights and activations."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        activation_mb: int,
        output_mb: int,
    ) -> torch.Tensor:
        kept = x.new_empty(len(x), activation_mb * FLOATS)
        ctx.save_for_backward(x, weight, kept)
        return x.new_zeros(len(x), output_mb * FLOATS)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        return None, torch.zeros_like(ctx.saved_tensors[1]), None, None


class StandIn(nn.Module):
    """A module of given sizes, in MB: its parameters, and the rest per sample."""

    def __init__(
        self, param_mb: int, activation_mb: int, output_mb: int, loss_inside: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(param_mb * FLOATS))
        self.sizes, self.loss_inside = (activation_mb, output_mb), loss_inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs, or one number if the module computes the loss."""
        output = _Layers.apply(x, self.weight, *self.sizes)
        return loss_of(output).view(1) if self.loss_inside else output


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """Return a loss that, like cross-entropy, keeps log-probabilities for backward."""
    return output.log_softmax(1).sum()


class Watched(nn.DataParallel):
    """nn.DataParallel that calls ``note(stage)`` after each of its four stages."""

    note = staticmethod(lambda stage: None)

    def scatter(self, *args: Any) -> Any:
        """Cut the batch into shares."""
        made = super().scatter(*args)
        self.note("scatter")
        return made

    def replicate(self, *args: Any) -> Any:
        """Copy the module to each device."""
        made = super().replicate(*args)
        self.note("replicate")
        return made

    def parallel_apply(self, *args: Any) -> Any:
        """Run the replicas."""
        made = super().parallel_apply(*args)
        self.note("parallel_apply")
        return made


def play(state: dict) -> dict:
    """Run two training steps; return what the second held and moved in each stage.

    Args:
        state: of the explorable. Its sizes are scaled down, and the results up again.
    Returns:
        For each stage ``held``, the MB on each device, and ``moved``, a list of [from,
        to, MB].
    """
    devices, found = range(state["num_devices"]), {}

    def note(stage: str) -> None:
        moved = Counter()
        for event in events():
            if event.source is not None:
                ends = [name.split(":")[-1] for name in (event.source, event.target)]
                moved[tuple("host" if e == "cpu" else int(e) for e in ends)] += (
                    event.num_bytes
                )
        held = [torch.accelerator.memory_allocated(i) for i in devices]
        found[stage] = {
            "held": [round(size / BYTES_PER_MB) for size in held],
            "moved": [
                [*ends, round(size / BYTES_PER_MB)]
                for ends, size in moved.items()
                if round(size / BYTES_PER_MB)
            ],
        }
        clear_events()

    def reduce(*args: Any, before: Callable = comm.reduce_add_coalesced) -> Any:
        note("backward")
        return before(*args)

    name, _, momentum = state["optimizer"].partition(" with ")
    options = {"momentum": 0.9} if momentum else {}
    sizes = [state[f"{what}_mb"] for what in ("param", "activation", "output")]
    with (
        plugged_in(len(devices), "64 GiB"),
        mock.patch.object(comm, "reduce_add_coalesced", reduce),
    ):
        net = StandIn(*sizes, state["loss_inside"]).to("vgpu:0")
        model = Watched(net, list(devices))
        model.note = note
        optimizer = getattr(torch.optim, name)(net.parameters(), **options)
        x = torch.zeros(state["batch_size"], state["input_mb"] * FLOATS)
        for _ in range(2):  # the first creates the optimizer's state
            found.clear()
            note("start")
            output = model(x)
            note("gather")
            loss = output.mean() if state["loss_inside"] else loss_of(output)
            note("loss")
            loss.backward()
            note("reduce")
            optimizer.step()
            optimizer.zero_grad()
            del output, loss
            note("step")
    return found
