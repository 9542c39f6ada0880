"""What virtual GPUs are made of: memory that can run out, a clock, and a log.

Memory is counted, not modelled: each storage counts once, rounded up to 512 bytes as
torch's allocator does, from the op that made it until the last tensor on it is gone.
Time is modelled: each device runs its ops one after another, as a CUDA stream does, and
an op takes as long as :class:`Costs` says. Nothing here measures this computer.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from allranks.vgpu.devices import Costs, Device, Event, Where
from allranks.vgpu.errors import NOT_PERMITTED, refuse_index
from allranks.vgpu.sizes import to_bytes

BLOCK_BYTES = 512
KINDS = ("vgpu", "cuda")  # what devices may be called
LOG_EVENTS = 2**16  # the last ones, some 30 MB, are kept; but all copies are counted


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
        self.observer: Any = None  # see rehearse.recorder
        self.capture: Any = None  # has before() and after(): a CUDA graph's
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
        key = storage._cdata
        num_bytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        with self._lock:
            if key in self._blocks:
                return
            device.require(num_bytes, shape)
            self._count(device, num_bytes)
            self._blocks[key] = device, num_bytes
            if self.observer is not None:
                self.observer.took(device, key, shape, num_bytes)
            weakref.finalize(storage, self._free, key).atexit = False

    def borrow(self, storage: torch.UntypedStorage, device: Device) -> None:
        """Note where a storage is that another process counts."""
        with self._lock:
            if storage._cdata not in self._blocks:
                self._blocks[storage._cdata] = device, 0
                self._count(device, 0)
                end = weakref.finalize(storage, self._free, storage._cdata)
                end.atexit = False

    def recount(self, storage: torch.UntypedStorage) -> None:
        """Count a storage again after an op has changed its size in place."""
        with self._lock:
            device, before = self._blocks[storage._cdata]
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
        device.reserved = max(device.reserved, device.allocated)
        device.most_reserved = max(device.most_reserved, device.reserved)

    def _free(self, key: int) -> None:
        with self._lock:
            if self.observer is not None:
                self.observer.frees(self._blocks[key][0], key)
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
        ends = [end for end in (source, target) if end is not None]
        if len(ends) < 2:
            self._check_not_capturing()
        duration = num_bytes / self.costs.link
        way = str(source or "cpu"), str(target or "cpu")
        if self.observer is not None:
            self.observer.copied(*way, num_bytes, wait, tensors)
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
