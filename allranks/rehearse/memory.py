"""What holds a GPU's memory at its peak, and which batch would still fit.

Each storage is known by its holder, such as parameters or activations, and by the line
that made it.

The rehearsal has one batch size, so which one would fit is an extrapolation: a tensor
that has the batch as a dimension grows with it, and all others stay. A larger batch may
have its peak at another moment, which is why several moments are kept, and not the peak
alone.
"""

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from allranks.rehearse import lines
from allranks.rehearse.records import BatchGrowth
from allranks.vgpu.machine import Device, Machine

RISE = 1.005  # a peak that rose by less is not looked at again
PARAMETERS, BUFFERS, GRADIENTS = "parameters", "buffers", "gradients"
OPTIMIZER, ACTIVATIONS, OTHER = "optimizer", "activations", "other"
COLLECTIVES, BACKWARD = "collectives' buffers", "temporaries of backward"
STAY = OPTIMIZER, COLLECTIVES  # do not grow with the batch, whatever their shapes
Peak = tuple[int, Counter, Counter]  # bytes, by holder, by line
FACTORS = [2**i for i in range(17)]  # batches for which the worst moment is kept
MOST_SIZES = 8  # of batches, as an evaluation may have another, and the last one, too
Moment = tuple[int, int]  # bytes in use, and those of them that grow with the batch


class Holders:
    """Knows who holds each storage, and keeps what held each GPU's at its peak.

    Args:
        machine: whose memory it is.
        batch: returns the samples of the batch in work; 0 if they are not known.
    """

    def __init__(self, machine: Machine, batch: Callable[[], int] = int) -> None:
        self.machine, self.batch = machine, batch
        self.shapes: set[tuple[int, ...]] = set()  # of parameters and buffers
        # By storage: the line that made it, and its holder by what torch was doing.
        self.places: dict[int, tuple[str, str]] = {}
        # By storage: the model's or optimizer's that owned it, when last looked at.
        # Looking takes a walk over all modules, so it is done at peaks alone.
        self.owners: dict[int, str] = {}
        self.owners_aged = False  # whether that should be looked at again
        self.watching_thread = 0  # which may not read what another one changes
        # By device.
        self.growths: dict[int, Growth] = {}
        self.first_lines: dict[int, str] = {}  # that used it
        self.peaks: dict[int, Peak] = {}
        self.max_bytes: Counter = Counter()  # a script may reset the device's peak
        # Devices whose peak still rises, and whose owners were looked at since.
        self.rising: set[int] = set()
        # By module: the line that made it.
        self.modules: weakref.WeakKeyDictionary[nn.Module, str]
        self.modules = weakref.WeakKeyDictionary()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        modules.register_module_parameter_registration_hook(self._note_shape)
        modules.register_module_buffer_registration_hook(self._note_shape)
        set_state, holders = nn.Module.__setstate__, self

        def __setstate__(module: nn.Module, state: dict[str, Any]) -> None:
            set_state(module, state)
            holders.adopt(module)

        nn.Module.__setstate__ = functools.wraps(set_state)(__setstate__)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self.num_steps = 0  # of all optimizers together
        self.states: dict[int, Counter] = {}  # by device: bytes by owner after a step

    def adopt(self, module: nn.Module) -> None:
        """Know a module that was copied or unpickled, without any registration."""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            self._note_shape(module, name, tensor)

    def _note_shape(self, module: nn.Module, name: str, tensor: Any) -> None:
        if module not in self.modules:
            self.modules[module] = lines.place().line
        if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
            local = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
            self.shapes |= {tuple(tensor.shape), tuple(local.shape)}

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers.add(optimizer)
        if any(self._is_new_peak(device) for device in self.machine.devices):
            # A gradient's free may end the peak.
            self.owners.update(self._owned_storages())

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Sum up what models and optimizers hold, after steps 1, 2, 4, 8, ..."""
        self.num_steps += 1
        if self.num_steps & (self.num_steps - 1):
            return
        self.optimizers.add(optimizer)
        owners = dict(self._owned_storages())
        for device in self.machine.devices:
            state = self.states[device.index] = Counter()
            for key, num_bytes in self.machine.blocks(device).items():
                if key in owners:
                    state[owners[key]] += num_bytes

    def on_allocate(
        self, device: Device, key: int, shape: Sequence[int], num_bytes: int
    ) -> None:
        """Note which line made a storage, and what torch was doing."""
        line, doing, _ = lines.place()
        holder = _holder(doing)
        self.places[key] = line, holder
        in_use = device.allocated
        self.max_bytes[device.index] = max(self.max_bytes[device.index], in_use)
        self.growth(device).on_allocate(key, shape, num_bytes, holder in STAY)
        if line:
            self.first_lines.setdefault(device.index, line)
        # Look when a peak begins to rise: when it has ended, a gradient may be gone.
        begins = device.index not in self.rising and self._is_new_peak(device)
        if (begins or self.owners_aged) and not self._only_watches():
            self.owners_aged = False
            self.rising |= {device.index} if begins else set()
            self.owners.update(self._owned_storages())

    def _only_watches(self) -> bool:
        """Tell whether this thread may read no gradient, which C++ may be replacing."""
        return threading.get_ident() == self.watching_thread

    def on_out_of_memory(
        self, device: Device, shape: Sequence[int], num_bytes: int
    ) -> None:
        """Note that a storage does not fit."""
        stays = _holder(lines.place().doing) in STAY
        self.growth(device).on_out_of_memory(device.allocated, shape, num_bytes, stays)

    def growth(self, device: Device) -> "Growth":
        """Return what is known of a device's memory and the batch."""
        if device.index not in self.growths:
            self.growths[device.index] = Growth(self.batch, self.shapes)
        return self.growths[device.index]

    def on_free(self, device: Device, key: int) -> None:
        """Look at who holds what, if this free ends a new peak."""
        self.look(device)
        self.growth(device).on_free(key, device.allocated)
        self.places.pop(key, None)
        self.owners.pop(key, None)

    def look(self, device: Device) -> None:
        """Note who holds what, if the device has never held more."""
        if self._is_new_peak(device) and not self._only_watches():
            self.owners.update(self._owned_storages())
            self.peaks[device.index] = self._count(device)
            self.rising.discard(device.index)

    def peak(self, device: Device) -> Peak:
        """Return the bytes of a device's peak, by holder and by line.

        One that has not ended is told from what was known when anybody last looked.
        """
        if self._is_new_peak(device):
            self.owners_aged = True
            return self._count(device)
        return self.peaks.get(device.index, (0, Counter(), Counter()))

    def _is_new_peak(self, device: Device) -> bool:
        before = self.peaks.get(device.index, (0,))[0]
        return device.peak <= device.allocated and before * RISE < device.allocated

    def _count(self, device: Device) -> Peak:
        """Sum up the storages that are there now; an owner is surer than a guess."""
        by_holder, by_line = Counter(), Counter()
        for key, num_bytes in self.machine.blocks(device).items():
            line, holder = self.places.get(key, ("", OTHER))
            by_holder[self.owners.get(key, holder)] += num_bytes
            by_line[line] += num_bytes
        return device.allocated, by_holder, by_line

    def _owned_storages(self) -> Iterator[tuple[int, str]]:
        """Yield the storages that belong to a model or an optimizer, and to what."""
        for optimizer in tuple(self.optimizers):
            for state in optimizer.state.values():
                for value in state.values() if isinstance(state, dict) else ():
                    yield from _owned(value, OPTIMIZER)
        for module in tuple(self.modules):
            for buffer in module._buffers.values():
                yield from _owned(buffer, BUFFERS)
            for parameter in module._parameters.values():
                yield from _owned(parameter, PARAMETERS)
                if parameter is not None and parameter.is_leaf:
                    yield from _owned(parameter.grad, GRADIENTS)


def _holder(doing: Container[str]) -> str:
    """Return who holds what torch makes while it does something."""
    if "collective" in doing:
        return COLLECTIVES
    if "step" in doing:
        return OPTIMIZER
    if "backward" in doing:
        return BACKWARD
    return ACTIVATIONS if "op" in doing and torch.is_grad_enabled() else OTHER


def _owned(tensor: Any, holder: str) -> Iterator[tuple[int, str]]:
    tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
    if (key := storage_key(tensor)) is not None:
        yield key, holder


def storage_key(tensor: Any) -> int | None:
    """Return what stands for a tensor's memory on a GPU; None if it has none there."""
    inner = getattr(tensor, "_inner", None)
    return None if inner is None else inner.untyped_storage()._cdata


class Growth:
    """Knows the bytes on one GPU that grow with the batch, and the worst moments.

    Args:
        batch: returns the samples of the batch in work; 0 if they are not known.
        fixed: shapes that no batch gives, those of parameters and buffers.
    """

    def __init__(
        self, batch: Callable[[], int], fixed: Container[tuple[int, ...]]
    ) -> None:
        self.batch, self.fixed = batch, fixed
        self.growing_blocks: dict[int, int] = {}  # by storage: bytes
        self.growing = 0  # bytes of all of them
        self.rising = False  # whether something was taken since the last look
        self.worst: dict[int, list[Moment]] = {}  # by batch, one for each factor
        self.lacking: list[tuple[int, *Moment]] = []  # each time that it did not fit

    def on_allocate(
        self, key: int, shape: Sequence[int], num_bytes: int, stays: bool
    ) -> None:
        """Note a new storage; one of the optimizer or of a collective ``stays``."""
        self.rising = True
        if not stays and grows(shape, self.batch(), self.fixed):
            self.growing_blocks[key] = num_bytes
            self.growing += num_bytes

    def on_free(self, key: int, in_use: int) -> None:
        """Look at this moment, if a free ends a rise, and forget a storage."""
        self.look(in_use)
        self.growing -= self.growing_blocks.pop(key, 0)

    def on_out_of_memory(
        self, in_use: int, shape: Sequence[int], num_bytes: int, stays: bool
    ) -> None:
        """Keep the moment at which a storage did not fit."""
        batch, grown = self.batch(), self.growing
        if not stays and grows(shape, batch, self.fixed):
            grown += num_bytes
        self.lacking = [*self.lacking[-MOST_SIZES:], (batch, in_use + num_bytes, grown)]

    def look(self, in_use: int) -> None:
        """Keep this moment, if it is the worst for any factor.

        A batch that is f times as large needs in_use + (f - 1) * growing bytes at it.
        The peak is the worst for f = 1; for a large f it is where activations peak.
        """
        if not self.rising:
            return
        self.rising, batch = False, self.batch()
        worst = self.worst.setdefault(batch, [(0, 0)] * len(FACTORS))
        for i, factor in enumerate(FACTORS):
            most, growing = worst[i]
            needed = in_use + (factor - 1) * self.growing
            if needed > most + (factor - 1) * growing:
                worst[i] = in_use, self.growing
        if len(self.worst) > MOST_SIZES:
            del self.worst[min(self.worst)]

    def of_batch(self, batch: int) -> BatchGrowth:
        """Return the worst moments of a batch; those of others do not grow with it."""
        own = set(self.worst.get(batch, ()))
        others = [worst[0][0] for b, worst in self.worst.items() if b != batch]
        moments = own | {(in_use, 0) for in_use in others} if own else own
        return BatchGrowth(batch, sorted(moments), self.lacking)


def grows(shape: Sequence[int], batch: int, fixed: Container[tuple[int, ...]]) -> bool:
    """Tell whether a tensor of some shape has the batch as a dimension.

    >>> grows((32, 10), 32, []), grows((32 * 8, 10), 32, []), grows((10, 10), 32, [])
    (True, True, False)
    """
    if not shape or not batch or tuple(shape) in fixed:
        return False
    if len(shape) == 1:
        return shape[0] == batch  # a longer row may be a flat parameter
    # (B, T, C), (heads, B, T) or (B * T, C).
    return batch in shape or (shape[0] > 0 and shape[0] % batch == 0)


def peak_bytes(moments: Sequence[Moment], batch: int, other: int) -> float:
    """Return the bytes at the peak of another batch.

    Args:
        moments: of the batch that was rehearsed.
        batch: its samples.
        other: those of the other batch.
    """
    return max(in_use + (other / batch - 1) * growing for in_use, growing in moments)


def largest_batch(moments: Sequence[Moment], batch: int, capacity: int) -> int | None:
    """Return the largest batch that would fit; None if nothing grows with the batch.

    >>> largest_batch([(100, 40), (90, 80)], batch=8, capacity=210)
    20
    """
    sizes = [
        batch * (1 + (capacity - in_use) / growing)
        for in_use, growing in moments
        if growing > 0
    ]
    return int(min(sizes)) if sizes else None


class BatchEstimate(NamedTuple):
    """Which batch would fit on a GPU, by which other one, and how it grows with it."""

    rehearsed: int  # samples
    sample_bytes: float
    largest: int  # that would fit
    lacked: bool  # whether even this may not, as memory ran out before the peak


def estimate_batch(
    growth: BatchGrowth, capacity: int, num_steps: int
) -> BatchEstimate | None:
    """Return the largest batch that would fit; None if that cannot be told.

    Args:
        growth: of a GPU's memory.
        capacity: its bytes.
        num_steps: that were taken; from two on, each moment of a step has been seen.
    """
    seen: list[tuple[int, list[Moment], bool]] = []
    if num_steps > 1 and growth.moments:
        seen.append((growth.batch, growth.moments, False))
    # Where memory ran out, that moment alone is known, so it gives an upper bound.
    seen += [(batch, [moment], True) for batch, *moment in growth.lacking if batch]
    estimates = [
        BatchEstimate(batch, max(part for _, part in moments) / batch, largest, lacked)
        for batch, moments, lacked in seen
        if (largest := largest_batch(moments, batch, capacity)) is not None
    ]
    return min(estimates, key=lambda estimate: estimate.largest, default=None)
