"""What holds a GPU's memory at its peak: parameters, gradients, activations, ..."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import register_optimizer_step_pre_hook

from allranks.rehearse import lines
from allranks.rehearse.fit import Growth
from allranks.vgpu.machine import Device, Machine

GROWTH = 1.005  # a peak that grew by less is not looked at again
PARAMETERS, BUFFERS, GRADIENTS = "parameters", "buffers", "gradients"
OPTIMIZER, ACTIVATIONS, OTHER = "optimizer", "activations", "other"
COLLECTIVES, BACKWARD = "collectives' buffers", "temporaries of backward"


class Holders:
    """Knows who holds each storage, and keeps what held each GPU's at its peak.

    Args:
        machine: whose memory it is.
        batch: returns the samples of the batch in work; 0 if they are not known.
    """

    def __init__(self, machine: Machine, batch: Callable[[], int] = int) -> None:
        self.machine, self.batch = machine, batch
        self.shapes: set[tuple[int, ...]] = set()  # of parameters and buffers
        self.growths: dict[int, Growth] = {}  # by device
        self.places: dict[int, tuple[str, str]] = {}  # by storage: line and holder
        self.first: dict[int, str] = {}  # by device: the line that used it first
        self.peaks: dict[int, tuple[int, Counter, Counter]] = {}
        # by module: the line that made it
        self.modules: weakref.WeakKeyDictionary[nn.Module, str] = (
            weakref.WeakKeyDictionary()
        )
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        modules.register_module_parameter_registration_hook(self._registered)
        modules.register_module_buffer_registration_hook(self._registered)
        register_optimizer_step_pre_hook(lambda opt, *_: self.optimizers.add(opt))

    def _registered(self, module: nn.Module, name: str, tensor: Any) -> None:
        if module not in self.modules:
            self.modules[module] = lines.place()[0]
        if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
            self.shapes |= {tuple(tensor.shape), tuple(local.shape)}

    def took(
        self, device: Device, key: int, shape: Sequence[int], num_bytes: int
    ) -> None:
        """Note which line made a storage, and what torch was doing."""
        line, doing, _ = lines.place()
        holder = OTHER
        if "collective" in doing:
            holder = COLLECTIVES
        elif "step" in doing:
            holder = OPTIMIZER
        elif "backward" in doing:
            holder = BACKWARD
        elif "op" in doing and torch.is_grad_enabled():
            holder = ACTIVATIONS
        self.places[key] = line, holder
        own = holder in (OPTIMIZER, COLLECTIVES)
        self.growth(device).took(key, shape, num_bytes, own)
        if line:
            self.first.setdefault(device.index, line)

    def growth(self, device: Device) -> Growth:
        """Return what is known of a device's memory and the batch."""
        if device.index not in self.growths:
            self.growths[device.index] = Growth(self.batch, self.shapes)
        return self.growths[device.index]

    def frees(self, device: Device, key: int) -> None:
        """Look at who holds what, if this free ends a new peak."""
        self.look(device)
        self.growth(device).frees(key, device.allocated)
        self.places.pop(key, None)

    def look(self, device: Device) -> None:
        """Note who holds what, if the device has never held more."""
        before = self.peaks.get(device.index, (0,))[0]
        if device.allocated < device.peak or device.allocated <= before * GROWTH:
            return
        known = dict(self._known())
        holders, places = Counter(), Counter()
        for key, num_bytes in self.machine.blocks(device).items():
            line, holder = self.places.get(key, ("", OTHER))
            holders[known.get(key, holder)] += num_bytes
            places[line] += num_bytes
        self.peaks[device.index] = device.allocated, holders, places

    def _known(self) -> Iterator[tuple[int, str]]:
        """Yield the storages that belong to a model or an optimizer, and to what."""
        for optimizer in tuple(self.optimizers):
            for state in optimizer.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    yield from _storage(value, OPTIMIZER)
        for module in tuple(self.modules):
            for buffer in module._buffers.values():
                yield from _storage(buffer, BUFFERS)
            for parameter in module._parameters.values():
                yield from _storage(parameter, PARAMETERS)
                if parameter is not None and parameter.is_leaf:
                    yield from _storage(parameter.grad, GRADIENTS)


def _storage(tensor: Any, holder: str) -> Iterator[tuple[int, str]]:
    tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
    if (key := storage_key(tensor)) is not None:
        yield key, holder


def storage_key(tensor: Any) -> int | None:
    """Return what stands for a tensor's memory on a GPU; None if it has none there."""
    inner = getattr(tensor, "_inner", None)
    return None if inner is None else inner.untyped_storage()._cdata
