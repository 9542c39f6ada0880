"""The processes behind live ranks: how they start, are watched, and are ended."""

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path

import psutil

from allranks.live import worker
from allranks.live.stdout import full_disk
from allranks.live.transcript import KEPT, Transcript
from allranks.report import need_unix

MAX_RANKS = 64  # processes; with more, a single machine would run out of memory


def warm_up() -> None:
    """Start the fork server, which imports torch once for all ranks to come."""
    if _start_method() == "forkserver":
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["allranks.live.preload"])
        forkserver.ensure_running()


class RankProcesses:
    """The processes of ``world_size`` ranks, with their pipes and their output.

    Attributes:
        conns: the parent's end of each rank's pipe, by rank.
        processes: the processes, by rank.
        transcripts: what each rank has shown in the cell that runs, or ran last.
    """

    def __init__(self, world_size: int, device: str) -> None:
        warm_up()
        self.processes, self.conns = [], []
        self._folder = _new_folder()
        self.transcripts = [Transcript(0) for _ in range(world_size)]
        self._cpu_time = [0.0] * world_size  # seconds, when last asked
        context = multiprocessing.get_context(_start_method())
        ours, theirs = context.Pipe()
        watchdog = context.Process(target=_watch_parent, args=(theirs, self._folder))
        # multiprocessing's own finalizer, because it runs before the exit hook that
        # would join the processes, and never in a forked copy of this one.
        ends = (self.processes, watchdog, self._folder)
        self.end = Finalize(self, _end, ends, exitpriority=100)
        environ = dict(os.environ)
        try:
            with _no_main_module():
                watchdog.start()
                theirs.close()
                self._to_watchdog = ours  # it closes when this process ends, however
                for rank in range(world_size):
                    ours, theirs = context.Pipe()
                    job = (rank, world_size, device, self._folder, environ, theirs)
                    # It is no daemon, because a rank may have children of its own:
                    # the workers of a DataLoader.
                    process = context.Process(target=worker.serve, args=job)
                    process.start()
                    theirs.close()
                    self._to_watchdog.send(process.pid)
                    self.processes.append(process)
                    self.conns.append(ours)
        except BaseException:
            self.end()
            raise

    def begin_cell(self, rank: int) -> None:
        """Start a new transcript, which begins with late prints of the cell before."""
        self.transcripts[rank] = Transcript(self.transcripts[rank].end)

    def receive(self, rank: int) -> tuple | int:
        """Return the rank's next message, or its exit code if it died."""
        with contextlib.suppress(EOFError, OSError):
            if self.conns[rank].poll():
                return self.conns[rank].recv()
        self.processes[rank].join(1)
        self.processes[rank].kill()  # in case it has only closed its pipe
        self.processes[rank].join()
        return self.processes[rank].exitcode

    def read_output(self, rank: int) -> None:
        """Add what the rank has printed meanwhile to its transcript."""
        transcript, path = self.transcripts[rank], self._folder / f"{rank}.out"
        if not path.exists():  # the rank is only starting
            return
        with open(path, "rb") as file:
            file.seek(transcript.end)
            while data := file.read(KEPT):
                transcript.add(data)

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the reader's code on these ranks."""
        self._signal(ranks, signal.SIGINT)

    def hold(self, ranks: Iterable[int]) -> None:
        """Stop these ranks' processes, so that they use no processor time."""
        self._signal(ranks, signal.SIGSTOP)

    def native_stderr(self, rank: int) -> str:
        """Return what code below Python wrote to the rank's stderr."""
        return (self._folder / f"{rank}.err").read_text("utf8", "replace")

    def ask_stacks(self, ranks: list[int]) -> dict[int, str]:
        """Make ranks write their Python stacks, whatever they are doing; return them.

        Returns:
            The stacks by rank; "" or the beginning of one for a rank that does not
            answer in time.
        """
        self._forget_stacks(ranks)
        self._signal(ranks, signal.SIGUSR1)
        deadline = time.monotonic() + 0.3  # seconds that a rank has to answer
        stacks = {rank: "" for rank in ranks}
        while not all(" in serve\n" in stack for stack in stacks.values()):
            stacks = {rank: self.stack(rank) for rank in ranks}
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self._forget_stacks(ranks)  # else a rank that dies later seems to stand there
        return stacks

    def _forget_stacks(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            os.truncate(self._folder / f"{rank}.stack", 0)

    def _signal(self, ranks: Iterable[int], number: int) -> None:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, number)

    def stack(self, rank: int) -> str:
        """Return the stack that the rank wrote when it was asked, or as it crashed."""
        return (self._folder / f"{rank}.stack").read_text("utf8", "replace")

    def switches(self, rank: int) -> int:
        """Return how often a rank's main thread was switched out.

        The number stays the same for as long as the thread waits.
        """
        with contextlib.suppress(psutil.Error):
            return sum(psutil.Process(self.processes[rank].pid).num_ctx_switches())
        return 0

    def is_busy(self, rank: int) -> bool:
        """Tell whether a rank computes, or is about to, rather than waits.

        It goes by the processor time that the rank has used since the call before.
        """
        try:
            process = psutil.Process(self.processes[rank].pid)
            status, times = process.status(), process.cpu_times()
        except psutil.Error:
            return False
        used = times.user + times.system - self._cpu_time[rank]
        self._cpu_time[rank] += used
        # On a crowded machine it may get no time at all, but Linux says whether it
        # is ready to run.
        wants = sys.platform == "linux" and status in ("running", "disk-sleep")
        return wants or used > 0.02


def check_possible(world_size: int, device: str) -> None:
    """Raise, with one sentence, for ranks that this machine cannot have.

    Raises:
        ValueError: if the number is impossible, or the device is missing here.
        RuntimeError: on Windows.
    """
    need_unix("live ranks")
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise ValueError(f"the number of ranks must be an integer, not {world_size!r}")
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks: the number must be 1 to {MAX_RANKS}")
    _check_open_files(world_size)
    if device == "cpu":
        return
    import torch

    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is None or gpu.type != device:
        found = f"an accelerator of type {gpu.type}" if gpu else "no accelerator"
        raise ValueError(f"device {device!r}: this machine has {found}; try 'cpu'")
    num_gpus = torch.accelerator.device_count()
    if world_size > num_gpus:
        raise ValueError(
            f"{world_size} ranks need {world_size} GPUs, one each; this machine has "
            f"{num_gpus}: ask for {num_gpus}, or for device 'cpu'"
        )


def _check_open_files(world_size: int) -> None:
    """Raise if the parent would run out of file descriptors.

    Each rank has a pipe and a sentinel there, and each start needs some more for a
    moment.
    """
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = psutil.Process().num_fds() + 3 * world_size + 24
    if needed > limit:
        raise ValueError(
            f"{world_size} ranks need about {needed} open files, and this process may "
            f"have {limit}: raise the limit (ulimit -n {max(1024, 2 * needed)}) in the "
            "shell that starts it, or ask for fewer ranks"
        )


def _new_folder() -> Path:
    """Return a new folder, on a disk that has room for what ranks write.

    Raises:
        OSError: if the disk is full; the sentence names the folder.
    """
    where = tempfile.gettempdir()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="allranks-"))
        (folder / "room").write_bytes(bytes(1 << 16))
        (folder / "room").unlink()
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(full_disk(where)) from None
    return folder


def _start_method() -> str:
    """Return how processes start: forked on Linux; macOS's frameworks forbid that."""
    return "forkserver" if sys.platform == "linux" else "spawn"


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script, which multiprocessing would run again in each rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end(processes: list[BaseProcess], watchdog: BaseProcess, folder: Path) -> None:
    """End all ranks, and then the watchdog, which is no longer needed."""
    _kill([process.pid for process in processes], folder)
    for process in [*processes, watchdog]:
        if process.pid is not None:
            process.kill()
            process.join()


def _watch_parent(from_parent: Connection, folder: Path) -> None:
    """Wait until the parent is gone, even if it was killed, and end its ranks.

    It is a process of its own, because a rank may be stuck in code that holds the GIL.

    Args:
        from_parent: a pipe that brings the ranks' process ids, and that closes when the
            parent ends.
        folder: what to remove with them.
    """
    os.setsid()
    pids = []
    with contextlib.suppress(EOFError):
        while True:
            pids.append(from_parent.recv())
    _kill(pids, folder)


def _kill(pids: list[int], folder: Path) -> None:
    """Kill each rank with its children, and remove what they wrote."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
