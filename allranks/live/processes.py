"""The processes behind live ranks: how they start, are watched, and are ended."""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path

import psutil

from allranks.base.report import is_user_code
from allranks.launch.torchrun import free_port
from allranks.live import worker
from allranks.live.calls import Call, read_progress
from allranks.live.calls import read as read_calls
from allranks.live.capacity import explained, new_folder
from allranks.live.desync import Issued
from allranks.live.interrupts import uninterrupted
from allranks.live.server import start_method, wait_until_ready, warm_up
from allranks.live.transcript import KEPT, Transcript, without_noise
from allranks.live.watchdog import WATCHDOG, kill

LARGE = 16 << 20  # bytes of output, which a rank's file may keep from cell to cell
_STARTING = threading.Lock()  # of ranks: it hides the main module from all threads


class RankProcesses:
    """The processes of ``world_size`` ranks, with their pipes and their output.

    Attributes:
        conns: the parent's end of each rank's pipe, by rank.
        processes: the processes, by rank.
        transcripts: what each rank has shown in the cell that runs, or ran last.
        issued: what each rank had issued when its last job ended well.
        owner: id of the process that started them; a fork of it shares their pipes.
    """

    def __init__(self, world_size: int, device: str, backend: str, gpus: bool) -> None:
        warm_up()
        wait_until_ready()
        self.processes, self.conns, self.owner = [], [], os.getpid()
        self._folder = new_folder()
        self.transcripts = [Transcript(0) for _ in range(world_size)]
        self._native = [0] * world_size  # bytes of N.err that have been read
        self._serial = 0  # of the last job
        self.issued: dict[int, Issued] = {}
        for rank in range(world_size):
            (self._folder / f"{rank}.out").touch()
        self._cpu_time = [0.0] * world_size  # seconds, when last asked
        self.used = [0.0] * world_size  # seconds of it between the last two times
        context = multiprocessing.get_context(start_method())
        # multiprocessing's own finalizer, because it runs before the exit hook that
        # would join the processes, and never in a forked copy of this one.
        ends = (self.processes, self.conns, self._folder)
        self.end = Finalize(self, _end, ends, exitpriority=100)
        environ, port = dict(os.environ), free_port()
        try:
            # A rank that was forked and not yet noted could not be ended.
            with _STARTING, uninterrupted(), _no_main_module():
                WATCHDOG.watch(self._folder, context)
                for rank in range(world_size):
                    ours, theirs = context.Pipe()
                    job = (rank, world_size, device, backend, gpus)
                    job = (*job, self._folder, port, environ, theirs)
                    # It is no daemon, because a rank may have children of its own:
                    # the workers of a DataLoader.
                    process = context.Process(target=worker.serve, args=job)
                    process.start()
                    theirs.close()
                    WATCHDOG.add(self._folder, process.pid)
                    self.processes.append(process)
                    self.conns.append(ours)
        except BaseException as error:
            self.end()
            if isinstance(error, EOFError | ConnectionError):
                said = (
                    f"ranks cannot start: {type(error).__name__} in their fork server"
                )
                raise OSError(said) from None
            raise

    def next_serial(self) -> int:
        """Number a job: its answers carry the number, so that late ones are known."""
        self._serial += 1
        return self._serial

    def begin_cell(self, rank: int) -> None:
        """Start a new transcript, which begins with late prints of the cell before.

        A large file is emptied, if there are none.
        """
        end, path = self.transcripts[rank].end, f"{self._folder}/{rank}.out"
        with contextlib.suppress(FileNotFoundError):  # as read_output will say
            if end > LARGE and os.stat(path).st_size == end:
                os.truncate(path, 0)
                end = 0
        self.transcripts[rank] = Transcript(end)

    def ready(self, ranks: Iterable[int], timeout: float) -> dict[int, bool]:
        """Wait until ranks say something or die, ``timeout`` seconds at most.

        Returns:
            Those ranks, and whether there is something in the pipe.
        """
        talks = {self.conns[rank]: rank for rank in ranks}
        ends = {self.processes[rank].sentinel: rank for rank in ranks}
        handles = wait([*talks, *ends], timeout)
        spoke = {talks[handle]: True for handle in handles if handle in talks}
        # A rank may do both. What it said before it died comes first; its end is seen
        # at the next call.
        return {ends[h]: False for h in handles if h in ends} | spoke

    def receive(self, rank: int, spoke: bool) -> tuple | int | None:
        """Return a rank's next message, or its exit code if it died.

        It is None of a rank that lives, and whose messages cannot be read any more.

        Args:
            rank: one that is ready.
            spoke: whether there is something in the pipe.
        """
        with contextlib.suppress(Exception):  # EOF, or a message that is cut off
            if spoke:
                return self.conns[rank].recv()
        process = self.processes[rank]
        process.join(2)  # the pipe closes a moment before the exit code is there
        exit_code = process.exitcode
        process.kill()  # if it has only closed its pipe, or what it says is garbage
        process.join()
        return exit_code

    def read_output(self, rank: int) -> Transcript:
        """Add what the rank has printed meanwhile to its transcript; return that."""
        transcript = self.transcripts[rank]
        try:
            file = open(f"{self._folder}/{rank}.out", "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            raise OSError(
                f"{self._folder} has been deleted, and with it what ranks print: "
                "start them again"
            ) from None
        with file:
            file.seek(transcript.end)
            # No more than there is, because a buffer of that size is made first.
            while (left := os.fstat(file.fileno()).st_size - transcript.end) > 0:
                transcript.add(file.read(min(left, KEPT)))
        return transcript

    def store(self, packed: bytes) -> str:
        """Write pickled values into a file for all ranks; return its name.

        A pipe would copy them for each rank, one rank after the other.
        """
        path = self._folder / "pushed"
        try:
            path.write_bytes(packed)
        except OSError as error:
            raise explained(error, self._folder.parent) from None
        return str(path)

    def progress(self, ranks: Iterable[int]) -> list[int]:
        """Return a number for each rank that grows when it prints or a call ends."""
        found = []
        for rank in ranks:
            size = read_progress(self._folder / f"{rank}.calls")
            for kind in "out", "err":
                with contextlib.suppress(FileNotFoundError):
                    size += os.stat(f"{self._folder}/{rank}.{kind}").st_size
            found.append(size)
        return found

    def calls(self, ranks: Iterable[int]) -> dict[int, list[Call]]:
        """Return the last collectives that each of these ranks has called."""
        return {rank: read_calls(self._folder / f"{rank}.calls") for rank in ranks}

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the reader's code on these ranks."""
        self._signal(ranks, signal.SIGINT)

    def hold(self, ranks: Iterable[int]) -> None:
        """Stop these ranks' processes, so that they use no processor time."""
        self._signal(ranks, signal.SIGSTOP)

    def native_stderr(self, rank: int) -> str:
        """Return what code below Python wrote to the rank's stderr since the last call.

        So do its children, such as the commands of ``subprocess``.
        """
        with contextlib.suppress(FileNotFoundError):  # the rank is only starting
            with open(f"{self._folder}/{rank}.err", "rb") as file:
                file.seek(self._native[rank])
                said = file.read()
            self._native[rank] += len(said)
            return without_noise(said.decode("utf8", "replace"))
        return ""

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
        while not all(map(_is_whole, stacks.values())):
            stacks = {rank: self.stack(rank) for rank in ranks}
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        self._forget_stacks(ranks)  # else a rank that dies later seems to stand there
        return stacks

    def why_silent(self, rank: int) -> str:
        """Say why a rank cannot tell where it stands; "" if it can, or Linux is not."""
        pid = self.processes[rank].pid
        try:
            status = Path(f"/proc/{pid}/status").read_text("utf8", "replace")
            words = Path(f"/proc/{pid}/cmdline").read_text("utf8", "replace")
        except OSError:
            return ""
        if re.search(r"^State:\s+T", status, re.MULTILINE):
            return "stand still, stopped by SIGSTOP"
        # One bit for each signal that the program catches, from signal 1 on. A rank
        # catches SIGUSR1; a program that took its place by exec has lost the handler.
        caught = re.search(r"^SigCgt:\s+(\w+)", status, re.MULTILINE)
        if caught and not int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1:
            name = words.replace("\0", " ")[:60].strip()
            if "forkserver" in words:
                return "run Python's own start, before its first line"
            return f"run another program, which has taken its place: {name}"
        return ""

    def _forget_stacks(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            with contextlib.suppress(FileNotFoundError):  # the rank is only starting
                os.truncate(self._folder / f"{rank}.stack", 0)

    def _signal(self, ranks: Iterable[int], number: int) -> None:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, number)

    def stack(self, rank: int) -> str:
        """Return the stack that the rank wrote when it was asked, or as it crashed."""
        path = self._folder / f"{rank}.stack"
        return path.read_text("utf8", "replace") if path.exists() else ""

    def switches(self, rank: int) -> int:
        """Return how often a rank's main thread was switched out.

        The number stays the same for as long as the thread waits.
        """
        with contextlib.suppress(psutil.Error):
            return sum(psutil.Process(self.processes[rank].pid).num_ctx_switches())
        return 0

    def is_busy(self, rank: int, whole: bool = True) -> bool:
        """Tell whether a rank computes, or is about to, rather than waits.

        It goes by the processor time that the rank has used since the call before. On a
        crowded machine it may get none at all, but Linux says who is ready to run.

        Args:
            rank: which one.
            whole: whether all threads and children count, or the main thread alone,
                which sleeps while gloo works for it.
        """
        pid, self.used[rank] = self.processes[rank].pid, 0.0
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return False
        self.used[rank] = times.user + times.system - self._cpu_time[rank]
        self._cpu_time[rank] += self.used[rank]
        # Linux counts in ticks of 10 ms; a rank that only polls uses one now and then.
        return self.used[rank] > 0.02 or _is_ready(pid, whole)


def _is_whole(stack: str) -> bool:
    """Tell whether a rank has written its stack, and where it awaits if it does."""
    calls, engine, _ = stack.partition(" in serve\n")
    files = re.findall(r'^  File "(.*)", line ', calls, re.MULTILINE)
    return bool(engine) and (any(map(is_user_code, files)) or " in await\n" in stack)


def _is_ready(pid: int, whole: bool) -> bool:
    """Tell whether a process runs, or would if it had a core, for longer than a poll.

    A thread of gloo's looks for messages every 10 ms, often in the tick in which this
    process looks, too. It sleeps again at the second look, unless it queues for a core.
    """
    for pause in (0, 0.002):
        time.sleep(pause)
        if not any(state in ("R", "D") for state in _states(pid, whole)):
            return False
    return True


def _states(pid: int, whole: bool) -> Iterator[str]:
    """Yield the state of each thread of a process and of its children.

    A thread in "R" or "D" runs, reads, or would if it could. All threads count if
    ``whole``, because the main thread sleeps in a collective while a thread of gloo's
    does the work. Only Linux tells; elsewhere there is nothing to yield.
    """
    tasks: list[Path] = []
    with contextlib.suppress(OSError):  # it has ended while it was looked at
        tasks += Path(f"/proc/{pid}/task").glob("*" if whole else f"{pid}")
    for task in tasks:
        with contextlib.suppress(OSError):  # it has ended, or nobody may know
            state = (task / "stat").read_text("utf8", "replace").rpartition(")")[2]
            yield state.split()[0]
            children = (task / "children").read_text().split() if whole else []
            for child in children:
                yield from _states(int(child), whole)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide the caller's script, which multiprocessing would run again in each rank."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _end(processes: list[BaseProcess], conns: list[Connection], folder: Path) -> None:
    """End all ranks.

    Their descriptors are closed now, because an error's traceback may keep the objects
    for long.
    """
    kill([process.pid for process in processes], folder)
    for process in processes:
        process.kill()
        process.join()
        process.close()
    for conn in conns:
        conn.close()
    WATCHDOG.forget(folder)
