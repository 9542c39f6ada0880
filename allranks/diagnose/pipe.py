"""What a job says through a pipe: passed on as it comes, and kept.

Ctrl-C reaches every program of a pipe. It ends the job in front; what that still says
is read, so this program has to live on.
"""

import os
import select
import signal
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TextIO

from allranks.diagnose.reading import CHUNK, LIMIT

STILL = 1.0  # seconds: a shorter silence is none


class Enough(Exception):
    """A second Ctrl-C: whoever waits wants an answer from what has come."""


@dataclass
class Received:
    """What came through stdin.

    Attributes:
        chunks: its last ``LIMIT`` bytes, compressed: the text is built beside them.
        begun: the chunk that is not full yet.
        size: bytes that came, and ``lost`` of them are no longer kept.
        lines: how many whole lines are kept.
        ended: ``lines`` at the first Ctrl-C, or None: what follows may stand in the
            line that had begun.
        still: seconds of silence before it; ``longest``: of any pause until then.
        passed: whether it was passed on.
        broken: whether that failed before the end.
    """

    chunks: deque[bytes] = field(default_factory=deque)
    begun: bytearray = field(default_factory=bytearray)
    size: int = 0
    lost: int = 0
    lines: int = 0
    ended: int | None = None
    still: float = 0.0
    longest: float = 0.0
    passed: bool = False
    broken: bool = False
    fresh: bool = True  # whether what comes next begins a line
    _last: float = field(default_factory=time.monotonic)

    def add(self, data: bytes) -> None:
        """Keep what came, in chunks of equal size, and lose the first if need be."""
        now = time.monotonic()
        if self.ended is None and self.size:  # to start is no pause
            self.longest = max(self.longest, now - self._last)
        self._last = now
        self.size += len(data)
        self.lines += data.count(b"\n")
        self.fresh = data.endswith(b"\n")
        self.begun += data
        if len(self.begun) >= CHUNK:
            self.chunks.append(zlib.compress(self.begun, 1))
            self.begun = bytearray()
        if self.size - self.lost > LIMIT:
            first = zlib.decompress(self.chunks.popleft())
            self.lost += len(first)
            self.lines -= first.count(b"\n")
            self.ended = self.ended and max(0, self.ended - first.count(b"\n"))

    def interrupt(self, *_) -> None:
        """Take note of Ctrl-C; the second one ends the reading."""
        if self.ended is not None:
            raise Enough
        self.ended = self.lines
        self.still = time.monotonic() - self._last

    @property
    def stood(self) -> bool:
        """Whether the job said nothing for longer than ever before it was ended."""
        return self.ended is not None and self.still >= max(STILL, self.longest)

    def taken(self) -> Iterator[bytes]:
        """The chunks, each of which is then gone from here."""
        while self.chunks:
            yield zlib.decompress(self.chunks.popleft())
        yield bytes(self.begun)


def receive(target: TextIO | None) -> Received:
    """Read stdin to its end, and pass it on as it comes.

    A regular file, and what is typed, is not passed on.

    Raises:
        ValueError: if stdin is closed.
    """
    if sys.stdin is None:
        raise ValueError("stdin is closed: name a log, or pipe one in")
    source, came, typed = sys.stdin.fileno(), Received(), sys.stdin.isatty()
    passes = None if target is None else target.fileno()
    if typed:
        print("Paste the log, then press Ctrl-D on a line of its own.", file=sys.stderr)
    if typed or stat.S_ISREG(os.fstat(source).st_mode):
        passes = None  # diagnose < train.log: nobody waits for it
    came.passed = passes is not None
    with _interrupts(None if typed else came.interrupt), suppress(Enough):
        while data := os.read(source, 2**16):
            came.add(data)
            try:
                _write(passes, data)
            except OSError as error:  # closed or full: the job shall not end of it
                passes, came.broken = None, True
                complain(
                    f"what comes cannot be shown ({error.strerror}); it is read on, "
                    "and the answer follows on stderr"
                )
    return came


def _write(target: int | None, data: bytes) -> None:
    """Write all of it, if there is a target."""
    view = memoryview(data if target is not None else b"")
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # a terminal that another program has set so
            select.select([], [target], [])


@contextmanager
def _interrupts(handler) -> Iterator[None]:
    """Let a function have Ctrl-C, where that is ours to say."""
    if handler is None:
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def complain(text: str) -> None:
    """One sentence on stderr, if there is one."""
    with suppress(OSError, AttributeError, ValueError):
        print(f"diagnose: {text}", file=sys.stderr, flush=True)
