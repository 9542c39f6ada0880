"""``torch.cuda.Stream`` and ``Event``: their whole interface, on one stream in order.

Every op has been run when its call returns, so nothing has to be waited for, and a
missing wait does no harm. An event's times are those of the estimated clock.
"""

import contextlib
import itertools
from typing import Any, Self

import torch

from allranks.vgpu.machine import Device, Where, current

_ids = itertools.count(1)
DEFAULT = 0  # the id of a device's default stream


class Stream:
    """A stream of a device; what is put on it runs at once."""

    device_type = 1  # c10's number for CUDA
    cuda_stream = 0

    def __init__(
        self,
        device: Where = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        **unused: Any,
    ) -> None:
        self._home = current().device(device if device_index is None else device_index)
        self.stream_id = next(_ids) if stream_id is None else stream_id
        self.priority = priority
        self._before: list[tuple[Stream, Stream]] = []

    @property
    def device(self) -> torch.device:
        """Return the device that it is of."""
        return torch.device(str(self._home))

    @property
    def device_index(self) -> int:
        """Return that device's index."""
        return self._home.index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((self._home.index, self.stream_id))

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"
        )

    def __enter__(self) -> Self:
        self._before.append((current_stream(self._home.index), current_stream()))
        set_stream(self)
        return self

    def __exit__(self, *error: object) -> None:
        for stream in self._before.pop():  # the last one's device is current again
            set_stream(stream)

    def wait_stream(self, stream: "Stream") -> None:
        """Do nothing: what is on the other stream has been done."""

    def wait_event(self, event: "Event") -> None:
        """Do nothing: what the event stands for has been done."""

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event on this stream, a new one unless it is given."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Tell that everything has been done."""
        return True

    def synchronize(self) -> None:
        """Wait for the device, on the estimated clock."""
        self._home.machine.synchronize(self._home)

    def is_capturing(self) -> bool:
        """Tell whether a CUDA graph is being captured."""
        return self._home.machine.capture is not None

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, -5


class Event:
    """A moment on a device's estimated clock."""

    cuda_event = 0

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: Where = None,
    ) -> None:
        self._timing, self._at, self._home = enable_timing, None, None

    @property
    def device(self) -> torch.device | None:
        """Return the device on which it was recorded."""
        return None if self._home is None else torch.device(str(self._home))

    def record(self, stream: Stream | None = None) -> None:
        """Note the time at which the device has done what it was given so far."""
        self._home = current().device() if stream is None else stream._home
        self._at = self._home.free_s

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: what the event stands for has been done."""

    def query(self) -> bool:
        """Tell that it has been reached."""
        return True

    def synchronize(self) -> None:
        """Wait for it, on the estimated clock."""
        if self._home is not None:
            self._home.machine.synchronize(self._home, until_s=self._at)

    def elapsed_time(self, end: "Event") -> float:
        """Return the estimated milliseconds from this event to another.

        Raises:
            RuntimeError: as torch, if one has no timing or was not recorded.
        """
        if not (self._timing and end._timing):
            raise RuntimeError(
                "Both events must be created with argument 'enable_timing=True'."
            )
        if self._at is None or end._at is None:
            raise RuntimeError(
                "Both events must be recorded before calculating elapsed time."
            )
        return 1e3 * (end._at - self._at)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._at is None else self._at}>"


def _streams(device: Device) -> dict[int, int]:
    """Return this thread's current streams, by device."""
    return vars(device.machine.thread).setdefault("streams", {})


def current_stream(device: Where = None) -> Stream:
    """Return the stream that is current on a device, for this thread."""
    home = current().device(device)
    return Stream(home.index, stream_id=_streams(home).get(home.index, DEFAULT))


def default_stream(device: Where = None) -> Stream:
    """Return the stream that a device begins with."""
    return Stream(current().device(device).index, stream_id=DEFAULT)


def set_stream(stream: Stream | None) -> None:
    """Make a stream its device's current one, and the device this thread's."""
    if stream is not None:
        home = stream._home
        _streams(home)[home.index] = stream.stream_id
        home.machine.thread.index = home.index


class StreamContext(contextlib.AbstractContextManager):
    """The context of ``with torch.cuda.stream(stream):``; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)
