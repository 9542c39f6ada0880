"""What holds a GPU's memory at its peak: parameters, gradients, activations, ..."""

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
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
STAY = OPTIMIZER, COLLECTIVES  # do not grow with the batch, whatever their shapes
Peak = tuple[int, Counter, Counter]  # bytes, by holder, by line


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
        self.peaks: dict[int, Peak] = {}  # by device
        self.most: Counter = Counter()  # bytes by device, though the script resets that
        self.known: dict[int, str] = {}  # by storage: who held it, when last looked at
        self.aged = False  # whether that should be looked at again
        self.rising: set[int] = (
            set()
        )  # devices that hold more than ever, and were looked at
        self.bystander = 0  # a thread that may not read what another one changes
        # by module: the line that made it
        self.modules: weakref.WeakKeyDictionary[nn.Module, str] = (
            weakref.WeakKeyDictionary()
        )
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        modules.register_module_parameter_registration_hook(self._registered)
        modules.register_module_buffer_registration_hook(self._registered)
        set_state, holders = nn.Module.__setstate__, self

        def __setstate__(module: nn.Module, state: dict[str, Any]) -> None:
            set_state(module, state)
            holders.adopt(module)

        nn.Module.__setstate__ = functools.wraps(set_state)(__setstate__)
        register_optimizer_step_pre_hook(self._steps)

    def adopt(self, module: nn.Module) -> None:
        """Know a module that was copied or unpickled, without any registration."""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            self._registered(module, name, tensor)

    def _registered(self, module: nn.Module, name: str, tensor: Any) -> None:
        if module not in self.modules:
            self.modules[module] = lines.place()[0]
        if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
            self.shapes |= {tuple(tensor.shape), tuple(local.shape)}

    def _steps(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers.add(optimizer)
        if any(self._is_new(device) for device in self.machine.devices):
            self.known.update(self._known())  # a gradient's free may end the peak

    def took(
        self, device: Device, key: int, shape: Sequence[int], num_bytes: int
    ) -> None:
        """Note which line made a storage, and what torch was doing."""
        line, doing, _ = lines.place()
        holder = _holder(doing)
        self.places[key] = line, holder
        self.most[device.index] = max(self.most[device.index], device.allocated)
        self.growth(device).took(key, shape, num_bytes, holder in STAY)
        if line:
            self.first.setdefault(device.index, line)
        begins = device.index not in self.rising and self._is_new(device)
        if (begins or self.aged) and threading.get_ident() != self.bystander:
            self.aged = False
            self.rising |= {device.index} if begins else set()
            self.known.update(self._known())

    def lacks(self, device: Device, shape: Sequence[int], num_bytes: int) -> None:
        """Note that a storage does not fit."""
        stays = _holder(lines.place()[1]) in STAY
        self.growth(device).lacks(device.allocated, shape, num_bytes, stays)

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
        self.known.pop(key, None)

    def look(self, device: Device) -> None:
        """Note who holds what, if the device has never held more.

        Not in a thread that only watches: C++ may be replacing a gradient meanwhile.
        """
        if self._is_new(device) and threading.get_ident() != self.bystander:
            self.known.update(self._known())
            self.peaks[device.index] = self._count(device)
            self.rising.discard(device.index)

    def peak(self, device: Device) -> Peak:
        """Return the bytes of a device's peak, by holder and by line.

        One that has not ended is told from what was known when anybody last looked.
        """
        if self._is_new(device):
            self.aged = True
            return self._count(device)
        return self.peaks.get(device.index, (0, Counter(), Counter()))

    def _is_new(self, device: Device) -> bool:
        before = self.peaks.get(device.index, (0,))[0]
        return device.peak <= device.allocated and before * GROWTH < device.allocated

    def _count(self, device: Device) -> Peak:
        holders, places = Counter(), Counter()
        for key, num_bytes in self.machine.blocks(device).items():
            line, holder = self.places.get(key, ("", OTHER))
            holders[self.known.get(key, holder)] += num_bytes
            places[line] += num_bytes
        return device.allocated, holders, places

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


def _holder(doing: Container[str]) -> str:
    """Return who holds what torch makes while it does something."""
    if "collective" in doing:
        return COLLECTIVES
    if "step" in doing:
        return OPTIMIZER
    if "backward" in doing:
        return BACKWARD
    return ACTIVATIONS if "op" in doing and torch.is_grad_enabled() else OTHER


def _storage(tensor: Any, holder: str) -> Iterator[tuple[int, str]]:
    tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
    if (key := storage_key(tensor)) is not None:
        yield key, holder


def storage_key(tensor: Any) -> int | None:
    """Return what stands for a tensor's memory on a GPU; None if it has none there."""
    inner = getattr(tensor, "_inner", None)
    return None if inner is None else inner.untyped_storage()._cdata
