"""The fork server, which imports torch once for all ranks to come."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import process, util
from typing import IO

from allranks.live.capacity import explained

READY = b"ready to fork ranks\n"  # what ``preload`` writes when it is done
WAIT_S = 60.0  # seconds after which ranks may try to import torch themselves
_started: tuple[int, IO[bytes]] | None = None  # process id, and what it writes
_owner = os.getpid()  # the process that this fork server serves


def warm_up() -> None:
    """Start the fork server, unless it runs; on macOS do nothing.

    Raises:
        OSError: if there is no room for its socket, or the working directory is gone.
    """
    if start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    try:
        os.getcwd()
    except FileNotFoundError:
        raise OSError(
            "the working directory has been deleted, and processes cannot start in "
            "it: change to another one first (%cd ~)"
        ) from None
    if os.getpid() != _owner:
        _disown()
    forkserver.set_forkserver_preload(["allranks.live.preload"])
    try:
        with _own_output():
            forkserver.ensure_running()
    except OSError as error:
        raise explained(error, tempfile.gettempdir()) from None


def _disown() -> None:
    """Forget what multiprocessing knows of the process that this one was forked from.

    It would wait for that one's children, its fork server among them, which only their
    parent can. And the first fork server to end removes the folder with its socket, so
    two must not share one.
    """
    global _owner
    from multiprocessing import forkserver

    _owner = os.getpid()
    forkserver._forkserver._forkserver_pid = None
    process._children -= {p for p in process._children if p._parent_pid != _owner}
    process.current_process()._config.pop("tempdir", None)


def wait_until_ready() -> None:
    """Wait until ranks can be forked; Ctrl-C may interrupt that.

    Raises:
        OSError: if the fork server has ended instead; the sentence says of what.
    """
    from multiprocessing import forkserver

    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if _started is None or _started[0] != pid:
        return  # macOS, or another's server, which runs already
    deadline = time.monotonic() + WAIT_S
    while READY not in (said := _output()) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT leaves a server that has ended for multiprocessing to collect.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                raise OSError(f"ranks cannot start: {_reason(_output() or said)}")
        time.sleep(0.01)


def start_method() -> str:
    """Return how processes start: forked on Linux; macOS's frameworks forbid that."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def _output() -> bytes:
    """Return what the fork server has written so far."""
    return os.pread(_started[1].fileno(), 1 << 20, 0)


def _reason(said: bytes) -> str:
    """Return the last line of a traceback."""
    lines = said.decode("utf8", "replace").strip().splitlines()
    return lines[-1] if lines else "the process that forks them has been ended"


@contextlib.contextmanager
def _own_output() -> Iterator[None]:
    """Give the processes that multiprocessing starts in this block a file for output.

    They also get a session each: a kernel that is shut down waits 3 s for what is left
    of its process group, and the resource tracker ignores what would end it sooner. Nor
    may a file ``random.py`` beside the notebook take the place of Python's module
    there, so they look for modules in the working directory last.
    """
    spawn = util.spawnv_passfds

    def start(path: bytes, args: list, fds: list[int]) -> int:
        global _started
        # In a file, not a pipe: it outlives the server, and nobody has to read it.
        output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open for life
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), fd) for fd in (1, 2)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]  # are inherited
        here = ("", os.getcwd())
        path_there = sorted(sys.path, key=lambda folder: folder in here)
        code = f"import sys; sys.path[:] = {path_there!r}; {args[-1]}"
        args = [args[0], "-P", *args[1:-1], code]
        environment = {**os.environ, "ALLRANKS_PARENT": str(os.getpid())}
        pid = os.posix_spawn(path, args, environment, file_actions=actions, setsid=True)
        _started = pid, output  # the last one is the fork server
        return pid

    util.spawnv_passfds = start
    try:
        yield
    finally:
        util.spawnv_passfds = spawn
