"""A rank's stdout: a file, in which late prints of threads are marked."""

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from allranks.live.capacity import explained


class Stdout(io.TextIOWrapper):
    """Text to file descriptor 1, written at once.

    A thread that an earlier cell has started prints into whatever cell runs at that
    moment, or between two. Its lines begin with its name, so that nobody takes them for
    output of the cell under which they appear.

    Args:
        path: of the file; that of file descriptor 2 lies beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._folder = path, path.parent.parent
        raw = io.FileIO(1, "wb", closefd=False)
        super().__init__(raw, encoding="utf-8", errors="replace", write_through=True)
        self._old: list[threading.Thread] | None = []  # None between two cells
        self._midline: set[int] = set()  # threads that have begun a line

    @contextlib.contextmanager
    def cell(self) -> Iterator[None]:
        """Let threads print freely that are started in this context."""
        self._old = threading.enumerate()
        self._mend()
        try:
            yield
        finally:
            self._old = None

    def _mend(self) -> None:
        """Take the place of stdout again, if an earlier cell has put another there.

        It would swallow what this cell prints, or raise if it is closed.
        """
        if not _is_open(1, self._path):
            for fd, kind in (1, "out"), (2, "err"):
                path = self._path.with_suffix(f".{kind}")
                file = os.open(path, os.O_WRONLY | os.O_APPEND)
                os.dup2(file, fd)
                if file not in (1, 2):
                    os.close(file)
        if sys.stdout is not self or sys.stderr is not self:
            sys.stdout = sys.stderr = self
            self.write("(an earlier cell has replaced sys.stdout; it is back again)\n")

    def close(self) -> None:
        """Stay open, as a notebook's stdout does: a rank has no other."""

    def write(self, text: str) -> int:
        """Write text; mark lines of threads that belong to an earlier cell."""
        thread = threading.current_thread()
        if thread is not threading.main_thread():
            fresh = thread.ident not in self._midline
            (self._midline.discard if text.endswith("\n") else self._midline.add)(
                thread.ident
            )
            # What begins with \r redraws a progress bar.
            if fresh and not text.startswith("\r") and self._is_late(thread):
                text = f"({thread.name}, of an earlier cell) {text}"
        try:
            return super().write(text)
        except OSError as error:
            raise explained(error, self._folder) from None

    def _is_late(self, thread: threading.Thread) -> bool:
        # Threads that Python has not started belong to torch and serve any cell.
        if isinstance(thread, threading._DummyThread):
            return False
        return self._old is None or thread in self._old


def _is_open(fd: int, path: Path) -> bool:
    """Tell whether a file descriptor leads to a file, or to one that is deleted."""
    try:
        return not path.exists() or os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False
