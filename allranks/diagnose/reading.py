"""A log as bytes, from a file or a pipe, and as text in parts of a bounded size.

What comes through a pipe is passed on as it comes, and kept. Ctrl-C reaches every
program of a pipe. It ends the job, whose last words still have to be read, so this
program must survive it.
"""

import codecs
import os
import re
import select
import signal
import stat
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TextIO

from allranks.base.signals import handling

LIMIT = 256 * 2**20  # bytes of one log
CHUNK = 2**20
STILL = 1.0  # seconds; a shorter silence does not count
HEAD = 8192  # bytes that show what kind of file it is
CONTROL = re.compile("[\0-\x08\x0e-\x1a\ufffd]")


def guess(head: bytes) -> str:
    """Guess the encoding of a text: UTF-16 has a mark, or a zero in every other byte.

    >>> guess("KeyError".encode("utf-16-be"))
    'utf-16-be'
    """
    for mark, name in (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"):
        if head.startswith(mark):
            return name
    even, odd, half = head[::2].count(0), head[1::2].count(0), len(head) // 2
    if half and max(even, odd) >= 0.4 * half and min(even, odd) <= half // 8:
        return "utf-16-be" if even > odd else "utf-16-le"
    return "utf-8"


def decoded(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the text of a log in parts.

    Args:
        chunks: the bytes of the log.
        name: what to call it in an error message.
    Raises:
        ValueError: with one sentence, if it is empty or no text.
    """
    head, full, decoder = b"", False, None
    for chunk in chain(chunks, last=b""):
        full = full or bool(chunk.strip(b" \t\r\n\0"))
        if decoder is None:  # too little has come to guess the encoding
            head += chunk
            if chunk and len(head) < HEAD:
                continue
            decoder = codecs.getincrementaldecoder(guess(head))("replace")
            begin = decoder.decode(head[:HEAD], len(head) <= HEAD)
            packed = head[:3] in (b"PK\x03", b"\x1f\x8b\x08")
            if packed or len(CONTROL.findall(begin)) > 8 + len(begin) // 10:
                raise ValueError(
                    f"{name} is not a text file: unpack it, and give the log inside"
                )
            yield begin.replace("\0", "")
            chunk = head[HEAD:]
        yield decoder.decode(chunk, not chunk).replace("\0", "")
    if not full:
        raise ValueError(f"{name} is empty: nothing to diagnose")


def chain(chunks: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    """Yield the chunks that are not empty, and then the last one."""
    yield from filter(None, chunks)
    yield last


def read(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file.

    Raises:
        ValueError: with one sentence, if it cannot be read or is too long.
    """
    try:
        if os.path.isdir(name):
            raise ValueError(f"{name} is a folder: give the logs in it, {name}/*.log")
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while size <= LIMIT and (chunk := file.read(CHUNK)):
                yield chunk
                size = max(size, file.tell() if file.seekable() else size + len(chunk))
            if size > LIMIT:
                raise ValueError(
                    f"{name} has more than {LIMIT >> 20} MiB: give its last part, "
                    f"tail -c {LIMIT >> 20}M {name} | python -m allranks.diagnose"
                )
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None


class Enough(Exception):
    """A second Ctrl-C: the user wants an answer from what has come so far."""


@dataclass
class Received:
    """What came through stdin.

    Attributes:
        chunks: its last ``LIMIT`` bytes, compressed, to leave memory for the text.
        begun: the chunk that is not full yet.
        size: bytes that came, of which the first ``lost`` are no longer kept.
        lines: how many whole lines are kept.
        ended: ``lines`` at the first Ctrl-C, or None. What follows may be in a line
            that had already begun.
        still: seconds of silence before the first Ctrl-C.
        longest: seconds of the longest pause until then.
        passed: whether it was passed on.
        broken: whether that failed before the end.
        fresh: whether what comes next begins a line.
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
    fresh: bool = True
    _last: float = field(default_factory=time.monotonic)

    def add(self, data: bytes) -> None:
        """Keep what came, in chunks, and drop the first chunk if there are too many."""
        now = time.monotonic()
        if self.ended is None and self.size:  # the start is no pause
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

    def interrupt(self, *_: object) -> None:
        """Remember when Ctrl-C came; the second one ends the reading.

        Raises:
            Enough: at the second one.
        """
        if self.ended is not None:
            raise Enough
        self.ended = self.lines
        self.still = time.monotonic() - self._last

    @property
    def stood(self) -> bool:
        """Tell whether the job was ended after a longer silence than any before."""
        return self.ended is not None and self.still >= max(STILL, self.longest)

    def taken(self) -> Iterator[bytes]:
        """Yield the chunks, and drop each of them."""
        while self.chunks:
            yield zlib.decompress(self.chunks.popleft())
        yield bytes(self.begun)


def receive(target: TextIO | None) -> Received:
    """Read stdin to its end, and pass it on as it comes.

    A regular file and typed text are not passed on.

    Args:
        target: the stream to pass it on to, or None.
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
        passes = None  # diagnose < train.log: no need to show it
    came.passed = passes is not None
    interrupts = nullcontext() if typed else handling(signal.SIGINT, came.interrupt)
    with interrupts, suppress(Enough):
        while data := os.read(source, 2**16):
            came.add(data)
            try:
                _write(passes, data)
            except OSError as error:  # closed or full, which must not end the job
                passes, came.broken = None, True
                complain(
                    f"what comes cannot be shown ({error.strerror}); it is read on, "
                    "and the answer follows on stderr"
                )
    return came


def _write(target: int | None, data: bytes) -> None:
    """Write all of the data, if there is a target."""
    view = memoryview(data if target is not None else b"")
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:  # a terminal that another program made non-blocking
            select.select([], [target], [])


def complain(text: str) -> None:
    """Print one sentence on stderr, unless it is closed or full."""
    with suppress(OSError, AttributeError, ValueError):
        print(f"diagnose: {text}", file=sys.stderr, flush=True)
