"""Play one step of torch's own nn.DataParallel on virtual GPUs, and weigh it.

The model is a stand-in that keeps exactly as many bytes as it is told, so that sizes of
real networks can be played small: a megabyte is played by ``BYTES_PER_MB`` bytes.
"""

from collections import Counter
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import comm

# By name: "vgpu" beside "torch" makes cloudpickle send torch.vgpu, where it exists.
from allranks.vgpu import clear_events, events, plugged_in

BYTES_PER_MB = 8 * 1024  # large against what a single number takes: 512 bytes
FLOATS = BYTES_PER_MB // 4


class _Layers(torch.autograd.Function):
    """What a network's forward leaves behind: input, weights and activations."""

    @staticmethod
    def forward(ctx, x, weight, activation_mb: int, output_mb: int):
        kept = x.new_empty(len(x), activation_mb * FLOATS)
        ctx.save_for_backward(x, weight, kept)
        return x.new_zeros(len(x), output_mb * FLOATS)

    @staticmethod
    def backward(ctx, grad):
        return None, torch.zeros_like(ctx.saved_tensors[1]), None, None


class StandIn(nn.Module):
    """A module of given sizes, in MB: its parameters, and the rest per sample."""

    def __init__(self, param_mb: int, activation_mb: int, output_mb: int, loss_inside):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(param_mb * FLOATS))
        self.sizes, self.loss_inside = (activation_mb, output_mb), loss_inside

    def forward(self, x):
        """Return the outputs, or one number if the loss is computed in here."""
        output = _Layers.apply(x, self.weight, *self.sizes)
        return loss_of(output).view(1) if self.loss_inside else output


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """A loss that keeps log-probabilities for its backward, as cross-entropy does."""
    return output.log_softmax(1).sum()


class Watched(nn.DataParallel):
    """nn.DataParallel that calls ``note(stage)`` after each of its four stages."""

    note = staticmethod(lambda stage: None)

    def scatter(self, *args):
        """Cut the batch."""
        made = super().scatter(*args)
        self.note("scatter")
        return made

    def replicate(self, *args):
        """Copy the module."""
        made = super().replicate(*args)
        self.note("replicate")
        return made

    def parallel_apply(self, *args):
        """Run the replicas."""
        made = super().parallel_apply(*args)
        self.note("parallel_apply")
        return made


def play(state: dict) -> dict:
    """Do two training steps; return what the second held and moved, by stage, in MB.

    Args:
        state: of the explorable. Its sizes are played small, and given back large.
    Returns:
        For each stage ``held``, by device, and ``moved``: [from, to, size].
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

    def reduce(*args, before=comm.reduce_add_coalesced):
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
        for _ in range(2):  # the first makes the optimizer's state
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
