"""A rank's stdout: a file, in which late prints of threads are marked."""

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

from allranks.live.room import explained


class Stdout(io.TextIOWrapper):
    """Text to file descriptor 1, written at once.

    A thread that an earlier cell has started prints into whatever cell runs at that
    moment, or between two. Its lines begin with its name, so that nobody takes them for
    output of the cell under which they appear.

    Args:
        folder: in which the file is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.parent
        raw = io.FileIO(1, "wb", closefd=False)
        super().__init__(raw, encoding="utf-8", errors="replace", write_through=True)
        self._old: list[threading.Thread] | None = []  # None between two cells
        self._midline: set[int] = set()  # threads that have begun a line

    @contextlib.contextmanager
    def cell(self) -> Iterator[None]:
        """Let threads print freely that are started in this context."""
        self._old = threading.enumerate()
        try:
            yield
        finally:
            self._old = None

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
