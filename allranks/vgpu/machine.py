"""What virtual GPUs are made of: memory that can run out, a clock, and a log.

Memory is counted, not estimated: each storage counts once, rounded up to 512 bytes as
torch's allocator does, from the op that made it until the last tensor on it is gone.
Time is estimated: each device runs its ops one after another, as a CUDA stream does,
and an op takes as long as :class:`Costs` says. Nothing here measures this computer.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from allranks.vgpu.messages import NOT_PERMITTED, refuse_index
from allranks.vgpu.sizes import from_bytes, to_bytes

BLOCK_BYTES = 512
KINDS = ("vgpu", "cuda")  # what devices may be called
LOG_EVENTS = 2**16  # the last ones, some 30 MB, are kept; but all copies are counted
Where = torch.device | str | int | None  # names a device; None is the current one


@dataclass(frozen=True)
class Costs:
    """The declared speeds behind the estimated clock: round numbers of no product.

    An op takes ``latency_s`` plus the longer of its arithmetic and its memory traffic.
    A copy takes ``latency_s`` plus its bytes over the link.

    Args:
        flops: floating-point operations per second; a multiply-add counts as two.
        memory: bytes per second that a device reads and writes in its own memory.
        link: bytes per second between two devices, or a device and the host.
        latency_s: seconds to start an op or a copy.
    """

    flops: float = 10e12
    memory: float = 500e9
    link: float = 16e9
    latency_s: float = 5e-6

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0 or (name != "latency_s" and value == 0):
                raise ValueError(f"Costs({name}={value}): must be above 0")


@dataclass(frozen=True, slots=True)
class Event:
    """One op on a device, or one copy between two places. Times are estimated."""

    device: str
    op: str
    shape: tuple[int, ...]
    start_s: float
    end_s: float
    num_bytes: int  # read and written by an op, moved by a copy
    source: str | None = None  # copies only: "cpu", "vgpu:0", "cuda:0", ...
    target: str | None = None
    label: str = ""


@dataclass(eq=False)
class Device:
    """One virtual GPU, with its sizes in bytes."""

    index: int
    capacity: int
    machine: "Machine" = field(repr=False)
    physical: int = 0  # its index before CUDA_VISIBLE_DEVICES renumbers
    allocated: int = 0
    peak: int = 0
    reserved: int = 0  # by a caching allocator: the peak since it was last emptied
    most_reserved: int = 0
    limit: int = 0  # bytes that the process may use, if it has set that itself
    taken: int = 0  # by all allocations ever made
    num_blocks: int = 0
    num_ooms: int = 0
    free_s: float = 0.0  # when it has done everything that it was given
    busy_s: float = 0.0

    def __str__(self) -> str:
        return "cpu" if self.is_host else f"{self.machine.kind}:{self.index}"

    @property
    def is_host(self) -> bool:
        """Whether it stands for the host, where tensors without numbers may be."""
        return self is self.machine.host

    def __deepcopy__(self, memo: dict) -> "Device":
        """Return the device itself: a tensor's copy is on the same one."""
        return self

    def require(self, num_bytes: int, shape: Sequence[int] = ()) -> None:
        """Raise torch.OutOfMemoryError unless a number of additional bytes fits.

        An observer gets the shape of the tensor that they are for.
        """
        room = self.limit or self.capacity
        if self.allocated + num_bytes > room:
            self.num_ooms += 1
            if self.machine.observer is not None:
                self.machine.observer.on_out_of_memory(self, shape, num_bytes)
            free = from_bytes(room - self.allocated)
            if self.machine.kind == "cuda":
                raise torch.OutOfMemoryError(self._cudas_sentence(num_bytes, free))
            raise torch.OutOfMemoryError(
                f"vGPU out of memory. Tried to allocate {from_bytes(num_bytes)}. "
                f"{self} has a total capacity of {from_bytes(self.capacity)} of which "
                f"{free} is free. {from_bytes(self.allocated)} is allocated by PyTorch."
            )

    def _cudas_sentence(self, num_bytes: int, free: str) -> str:
        """Return what CUDA's allocator says; scripts look for its first words."""
        taken = from_bytes(self.allocated)
        return (
            f"CUDA out of memory. Tried to allocate {from_bytes(num_bytes)}. GPU "
            f"{self.index} has a total capacity of {from_bytes(self.capacity)} of "
            f"which {free} is free. Process {os.getpid()} has {taken} memory in use. "
            f"Of the allocated memory {taken} is allocated by PyTorch, and 0 bytes is "
            "reserved by PyTorch but unallocated."
        )


class Observer(Protocol):
    """What a machine tells, as it happens; a rehearsal's recorder listens."""

    def on_allocate(
        self, device: Device, key: int, shape: Sequence[int], num_bytes: int
    ) -> None:
        """A storage was made, for a tensor of a shape; key is its address."""

    def on_free(self, device: Device, key: int) -> None:
        """A storage is about to be freed; it still counts."""

    def on_out_of_memory(
        self, device: Device, shape: Sequence[int], num_bytes: int
    ) -> None:
        """A storage does not fit; the error follows."""

    def on_copy(
        self,
        source: str,
        target: str,
        num_bytes: int,
        wait: bool,
        ends: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        """Bytes are moved between two places; the two tensors are on the CPU."""


class Machine:
    """The devices, the storages on them, and the log of what they did."""

    def __init__(
        self,
        num_devices: int,
        memory: str | int,
        costs: Costs,
        kind: str = "vgpu",
        card: Any = None,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"virtual GPUs of kind {kind!r}: {' or '.join(KINDS)}")
        self.kind = kind
        if isinstance(num_devices, bool) or not isinstance(num_devices, int):
            raise TypeError(f"{num_devices!r} virtual GPUs: give an integer")
        if not 1 <= num_devices <= 64:
            raise ValueError(f"{num_devices} virtual GPUs: plug in 1 to 64")
        capacity = to_bytes(memory)
        self.capacity, self.card = capacity, card
        self.built = [Device(i, capacity, self, i) for i in range(num_devices)]
        self.devices = list(self.built)  # those that are visible, in their order
        self.costs = costs
        self.events: deque[Event] = deque(maxlen=LOG_EVENTS)
        self.num_events = 0
        self.copied: dict[tuple, list[int]] = {}  # by label and way: copies, bytes
        self.thread = threading.local()  # each thread's .index and .label
        self.host_s = 0.0  # the time until which the program waits
        self.plugged_in = True
        self.user: int | None = None  # the process that took CUDA into use
        self.settled = False  # whether CUDA_VISIBLE_DEVICES has been read
        self.observer: Observer | None = None
        self.capture: Any = None  # has before() and after(): a CUDA graph's
        # The host as a device, if tensors without numbers may be there; nobody counts.
        self.host: Device | None = None
        self._blocks: dict[int, tuple[Device, int]] = {}  # by storage
        self._lock = threading.RLock()  # reentrant, since a free may interrupt a count

    def device(self, where: Where = None) -> Device:
        """Return the device that a torch.device, an index or a name stands for.

        Raises:
            RuntimeError: if there is no such device.
        """
        if isinstance(where, str):
            where = torch.device(where)
        if getattr(where, "type", "vgpu") not in KINDS:
            raise ValueError(f"Expected a {self.kind} device, but got: {where}")
        index = getattr(where, "index", where)
        if index is None:
            index = getattr(self.thread, "index", 0)
        if not 0 <= index < len(self.devices):
            if self.kind == "cuda":
                refuse_index(index)
            last = len(self.devices) - 1
            raise RuntimeError(f"vgpu:{index} is not plugged in: 0 to {last} are")
        return self.devices[index]

    def check_plugged_in(self, device: Device) -> None:
        """Raise RuntimeError unless these devices are still plugged in."""
        if not self.plugged_in:
            raise RuntimeError(
                f"this tensor was left on {device} when the virtual GPUs were "
                "unplugged: copy it with .cpu() first, or make it again"
            )

    def adopt(
        self,
        storage: torch.UntypedStorage,
        device: Device,
        shape: Sequence[int] = (),
    ) -> None:
        """Count a storage on a device until it is freed; raise if it does not fit.

        An observer gets the shape of the tensor that it was made for.
        """
        if device.is_host:
            return
        key = storage._cdata
        num_bytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        with self._lock:
            # Views and detached tensors share a storage, which counts once.
            if key in self._blocks:
                return
            # The error comes before anything is counted, so who catches it can go on.
            device.require(num_bytes, shape)
            self._count(device, num_bytes)
            self._blocks[key] = device, num_bytes
            if self.observer is not None:
                self.observer.on_allocate(device, key, shape, num_bytes)
            # C++ keeps a storage's Python object alive as long as its memory is in use,
            # so the object's end is the memory's.
            weakref.finalize(storage, self._free, key).atexit = False

    def borrow(self, storage: torch.UntypedStorage, device: Device) -> None:
        """Note where a storage is that another process counts."""
        with self._lock:
            if storage._cdata not in self._blocks:
                # 0 bytes: who has made the memory counts it.
                self._blocks[storage._cdata] = device, 0
                self._count(device, 0)
                end = weakref.finalize(storage, self._free, storage._cdata)
                end.atexit = False

    def recount(self, storage: torch.UntypedStorage) -> None:
        """Count a storage again after an op has changed its size in place."""
        with self._lock:
            device, before = self._blocks.get(storage._cdata, (self.host, 0))
            if device is self.host:
                return
            num_bytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
            device.require(num_bytes - before)
            device.allocated -= before
            device.num_blocks -= 1
            self._blocks[storage._cdata] = device, num_bytes
            self._count(device, num_bytes)

    def _count(self, device: Device, num_bytes: int) -> None:
        device.allocated += num_bytes
        device.taken += num_bytes
        device.num_blocks += 1
        device.peak = max(device.peak, device.allocated)
        # A caching allocator keeps what is freed, so it holds the peak until emptied.
        device.reserved = max(device.reserved, device.allocated)
        device.most_reserved = max(device.most_reserved, device.reserved)

    def _free(self, key: int) -> None:
        with self._lock:
            if self.observer is not None:
                self.observer.on_free(self._blocks[key][0], key)
            device, num_bytes = self._blocks.pop(key)
            device.allocated -= num_bytes
            device.num_blocks -= 1

    def blocks(self, device: Device) -> dict[int, int]:
        """Return the bytes of each storage on a device, by the storage's address."""
        with self._lock:
            return {k: n for k, (home, n) in self._blocks.items() if home is device}

    def home(self, storage: torch.UntypedStorage) -> Device | None:
        """Return the device that a storage is on; None if it is on none."""
        return self._blocks.get(storage._cdata, (None,))[0]

    def compute(
        self,
        device: Device,
        op: str,
        shape: Sequence[int],
        *,
        num_bytes: int,
        flops: float = 0.0,
    ) -> None:
        """Make a device spend time on an op.

        Args:
            device: which one.
            op: its name.
            shape: of the result.
            num_bytes: how much it reads and writes.
            flops: floating-point operations.
        """
        if device.is_host:
            return
        duration = max(flops / self.costs.flops, num_bytes / self.costs.memory)
        self._spend([device], op, shape, duration, num_bytes)

    def copy(
        self,
        source: Device | None,
        target: Device | None,
        shape: Sequence[int],
        num_bytes: int,
        wait: bool = True,
        tensors: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """Move bytes between two devices, or a device and the host (None).

        Both ends are busy meanwhile. The program waits for a copy from or to the host,
        unless it is non_blocking (``wait`` is False). An observer gets the two tensors
        on the CPU.
        """
        # The host has no clock of its own.
        source, target = (d and (None if d.is_host else d) for d in (source, target))
        ends = [end for end in (source, target) if end is not None]
        if not ends:
            return
        if len(ends) < 2:  # a CUDA graph holds no copy from or to the host
            self._check_not_capturing()
        duration = num_bytes / self.costs.link
        way = str(source or "cpu"), str(target or "cpu")
        if self.observer is not None:
            self.observer.on_copy(*way, num_bytes, wait, tensors)
        self._spend(ends, "copy", shape, duration, num_bytes, way)
        if len(ends) < 2 and wait:
            self.host_s = max(self.host_s, ends[0].free_s)

    def _spend(
        self,
        devices: list[Device],
        op: str,
        shape: Sequence[int],
        duration: float,
        num_bytes: int,
        way: tuple[str, str] | None = None,
    ) -> None:
        """Make devices spend seconds on an op, and log it for the last of them."""
        with self._lock:
            # In order, as on one stream: an op begins when all its devices are free,
            # and not before the program has issued it. Only a wait moves the program's
            # own time.
            start = max([self.host_s, *(each.free_s for each in devices)])
            end = start + self.costs.latency_s + duration
            for each in devices:
                each.free_s, each.busy_s = end, each.busy_s + end - start
            source, target = way or (None, None)
            event = Event(
                device=str(devices[-1]),
                op=op,
                shape=tuple(shape),
                start_s=start,
                end_s=end,
                num_bytes=num_bytes,
                source=source,
                target=target,
                label=getattr(self.thread, "label", ""),
            )
            self.events.append(event)
            self.num_events += 1
            if way:
                # The log forgets old events, and this count does not.
                count = self.copied.setdefault((event.label, *way), [0, 0])
                count[0], count[1] = count[0] + 1, count[1] + num_bytes

    def synchronize(self, device: Device, until_s: float | None = None) -> None:
        """Make the program wait for a device, until a time or until all is done."""
        self._check_not_capturing()
        self.host_s = max(self.host_s, device.free_s if until_s is None else until_s)

    def _check_not_capturing(self) -> None:
        """Raise CUDA's error for what may not be in a graph."""
        if self.capture is not None:
            raise torch.AcceleratorError(NOT_PERMITTED)

    def clear(self) -> None:
        """Forget the events and start the clock at 0 again."""
        with self._lock:
            self.events.clear()
            self.copied.clear()
            self.num_events = 0
            self.host_s = 0.0
            for device in self.devices:
                device.free_s = device.busy_s = 0.0

    @contextmanager
    def label(self, text: str) -> Iterator[None]:
        """Label what this thread does until the end of the block."""
        before, self.thread.label = getattr(self.thread, "label", ""), text
        try:
            yield
        finally:
            self.thread.label = before


plugged: Machine | None = None  # the machine that torch sees


def kind() -> str:
    """Return what the devices are called, those of the machine that is plugged in."""
    return "vgpu" if plugged is None else plugged.kind


def is_virtual(where: torch.device | None) -> bool:
    """Tell whether a device is one of the machine that is plugged in.

    "vgpu" always means one, because torch.device(1) has that type: it is the name of
    torch's free device type, whatever the devices are called.
    """
    if where is None:
        return False
    return where.type in ("vgpu", kind())


def current() -> Machine:
    """Return the machine that is plugged in.

    Raises:
        RuntimeError: if none is plugged in.
    """
    if plugged is None:
        raise RuntimeError(
            "no virtual GPU is plugged in: allranks.vgpu.plug_in(2), or %vgpus 2"
        )
    return plugged
