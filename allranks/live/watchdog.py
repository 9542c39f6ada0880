"""The process that ends live ranks if the one that started them cannot.

A rank does not notice by itself that its parent was killed: it may be stuck in code
that holds the GIL. So a process of its own waits for that. It serves all groups of its
parent, because to fork one takes as long as to fork a rank.
"""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path


class Watchdog:
    """Knows the ranks of every group, and starts the process that waits with them.

    Attributes:
        pid: of that process; None before the first group.
    """

    def __init__(self) -> None:
        self.pid: int | None = None
        self._groups: dict[Path, list[int]] = {}  # process ids by the group's folder
        self._to_process: Connection | None = None
        # A group that is thrown away is forgotten wherever Python collects it, which
        # may be within one of these calls.
        self._lock = threading.RLock()

    def watch(self, folder: Path, context: BaseContext) -> None:
        """Take care of a group, whose ranks are still to come.

        Args:
            folder: of the group; it will be removed.
            context: how processes start.
        """
        with self._lock:
            self._groups[folder] = []
            if not self._tell(folder):  # there is no process yet, or it was killed
                self._start(context)

    def add(self, folder: Path, pid: int) -> None:
        """Take care of a rank, which leads a process group."""
        with self._lock:
            self._groups[folder].append(pid)
            self._tell(folder)

    def forget(self, folder: Path) -> None:
        """Let go of a group that has ended."""
        with self._lock:
            self._groups.pop(folder, None)
            self._tell(folder)

    def disown(self) -> None:
        """Let go of the parent's groups, in a process that was forked from it.

        The process that waits for the parent's end would wait for this one's, too.
        """
        if self._to_process is not None:
            self._to_process.close()
        self.pid, self._to_process = None, None
        self._groups.clear()

    def _tell(self, folder: Path) -> bool:
        with contextlib.suppress(OSError):
            if self._to_process is not None:
                self._to_process.send((folder, self._groups.get(folder)))
                return True
        return False

    def _start(self, context: BaseContext) -> None:
        theirs, ours = context.Pipe(duplex=False)
        with theirs:
            process = context.Process(target=_wait, args=(theirs, self._groups))
            process.start()
        self.pid, self._to_process = process.pid, ours
        # When all groups have ended, and before the exit hook would join the process.
        Finalize(None, _end, args=(process,), exitpriority=50)


def _end(process: BaseProcess) -> None:
    if process.is_alive():  # otherwise its id may be another's by now
        process.kill()


def _wait(from_parent: Connection, groups: dict[Path, list[int]]) -> None:
    """Wait until the parent is gone, even if it was killed, and end its ranks.

    Args:
        from_parent: a pipe that closes when the parent ends. It brings the folder of a
            group with the ids of its ranks, or with None when the group has ended.
        groups: those that there are already.
    """
    # In a session of its own, else a Ctrl-C or a kill of the parent's process group
    # would take it along, and nobody would end the ranks.
    os.setsid()
    with contextlib.suppress(EOFError):
        while True:
            folder, pids = from_parent.recv()
            groups.pop(folder, None)
            if pids is not None:
                groups[folder] = pids
    for folder, pids in groups.items():
        kill(pids, folder)


def kill(pids: Iterable[int], folder: Path) -> None:
    """Kill each rank with its children, and remove what they wrote."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # A rank leads its group, which has its DataLoader's workers and commands.
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


WATCHDOG = Watchdog()
os.register_at_fork(after_in_child=WATCHDOG.disown)
