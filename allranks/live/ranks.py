"""Live ranks: W processes that share a group and run what the parent sends them."""

import contextlib
import pickle
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from typing import Any, Self

from allranks.live import jobs
from allranks.live.processes import RankProcesses, check_possible
from allranks.report import (
    RanksError,
    RanksInterrupted,
    describe_death,
    describe_stack,
    fold,
)

START_TIMEOUT = 60.0  # seconds for importing torch and forming the group
GRACE = 0.25  # seconds without any progress, once a rank has failed


class Ranks:
    """A group of ``world_size`` live processes; also a context manager.

    Args:
        world_size: number of processes, 1 to 64.
        device: ``"cpu"`` (gloo), or an accelerator such as ``"cuda"``: rank r gets
            device r, and the backend is the one that torch names for it.
        timeout: seconds after which a call counts as hung, unless it sets its own.

    Raises:
        ValueError: if the world size is impossible, here or on this machine.
        RuntimeError: on Windows.
    """

    def __init__(
        self, world_size: int, device: str = "cpu", timeout: float = 60.0
    ) -> None:
        check_possible(world_size, device)
        self.world_size, self.device, self.timeout = world_size, device, timeout
        self.stall: float | None = None  # seconds without any progress that are a hang
        self.outputs: list[str] = []  # what each rank printed in the last call
        self._sources: dict[str, str] = {}  # text of each cell, by file name
        self._lost = False  # after a failure, until the reader has been told
        self._start()

    def run(
        self,
        work: Callable | str,
        *args: Any,
        timeout: float | None = None,
        on: Iterable[int] | None = None,
        quiet: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run a function or source text on every rank; return the results by rank.

        Args:
            work: a function, which is sent by value, or source text, whose last
                expression is the result.
            *args: the function's positional arguments.
            timeout: seconds until the call counts as hung; by default the group's.
            on: the ranks to run on, by default all. Results come in rank order.
            quiet: don't print what the ranks print; it stays in ``outputs``.
            **kwargs: the function's keyword arguments.

        Raises:
            RanksError: if a rank fails, dies or hangs. The ranks are then ended, and
                the next call starts fresh ones and says so.
            TypeError: if source text comes with arguments.
            ValueError: if ``on`` names no rank, or one that does not exist.
        """
        if callable(work):
            job = jobs.call(work, args, kwargs)
        elif args or kwargs:
            raise TypeError("source text takes no arguments; send a function instead")
        else:
            job = jobs.source(work, "<source>", echo=False, values=True)
        return self._send(job, on, timeout, quiet)

    def run_cell(
        self,
        source: str,
        filename: str,
        timeout: float | None = None,
        on: Iterable[int] | None = None,
        quiet: bool = False,
        values: bool = False,
    ) -> list[Any]:
        """Run source text as a cell, whose last expression each rank prints.

        Args:
            source: the cell's text.
            filename: the name that tracebacks and reports give it.
            timeout: as in ``run``.
            on: as in ``run``.
            quiet: as in ``run``.
            values: whether to return the last expressions; otherwise each is None.

        Raises:
            RanksError: as in ``run``.
            SyntaxError: if the text is not Python; no rank has run it then.
        """
        job = jobs.source(source, filename, echo=True, values=values)
        return self._send(job, on, timeout, quiet)

    def status(self) -> str:
        """Say in one line which processes are alive."""
        if self._crew is None:
            return f"{self.world_size} ranks, ended; the next cell starts them afresh"
        pids = ", ".join(str(p.pid) for p in self._crew.processes)
        return f"{self.world_size} ranks live on {self.device}, process ids {pids}"

    def close(self) -> None:
        """End all ranks at once; a second call does nothing."""
        if self._crew is not None:
            self._crew.end()
            self._crew = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _start(self) -> None:
        self._crew = RankProcesses(self.world_size, self.device)
        try:
            self._collect(list(range(self.world_size)), START_TIMEOUT, "<start>")
        except BaseException:
            self.close()
            raise

    def _send(
        self,
        job: tuple,
        on: Iterable[int] | None,
        timeout: float | None,
        quiet: bool,
    ) -> list[Any]:
        """Send a job to the ranks, print what they print, and return their results."""
        ranks, timeout = self._pick(on), timeout or self.timeout
        if self._crew is None:
            self._start()
        if self._lost:
            self._lost = False
            print("(fresh ranks: the variables of earlier cells are gone)")
        filename = job[1] if len(job) > 1 else ""
        self._sources[filename] = job[0] if filename else ""
        for rank in ranks:
            with contextlib.suppress(OSError):  # it has died since; _collect says how
                self._crew.conns[rank].send(job)
        answers, failure = [], None
        try:
            answers = self._collect(ranks, timeout, filename)
        except RanksError as error:
            failure = error
        self.outputs = [self._crew.new_output(rank) for rank in ranks]
        if failure is not None:
            self.close()
            self._lost = True
        if any(self.outputs) and not quiet:
            print(fold(self.outputs, ranks))
        if failure is not None:
            raise failure
        return [pickle.loads(answer) for answer in answers]

    def _collect(
        self, ranks: list[int], timeout: float, filename: str
    ) -> list[bytes | None]:
        """Wait for every rank; once one has failed, only while others make progress."""
        answers, errors, deaths = {}, {}, {}
        pending, headline, kind, seen = set(ranks), "", RanksError, []
        progress = time.monotonic()
        deadline = progress + timeout
        try:
            while pending:
                now = time.monotonic()
                left = deadline - now
                if left <= 0:
                    headline = f"timeout after {timeout:g} s"
                    break
                grace = GRACE if errors or deaths else self.stall
                if grace is not None:
                    left = min(left, 0.05)
                    busy = [self._crew.is_busy(rank) for rank in pending]
                    # A rank that waits for a GPU spins, so a busy processor is a sign
                    # of progress on the CPU only.
                    if self.device == "cpu" and any(busy):
                        progress = now
                    if grace == self.stall:
                        before, seen = seen, [self._crew.switches(r) for r in pending]
                        progress = progress if before == seen else now
                    if now > progress + grace:
                        break
                for rank in self._ready(pending, left):
                    pending.discard(rank)
                    progress = time.monotonic()
                    match self._crew.receive(rank):
                        case (value, None):
                            answers[rank] = value
                        case (_, error):
                            errors[rank] = error
                        case exit_code:
                            deaths[rank] = self._death_of(rank, exit_code, filename)
        except KeyboardInterrupt:
            headline, kind = "interrupted", RanksInterrupted
        if not (pending or errors or deaths):
            return [answers[rank] for rank in ranks]
        waiting = self._where(sorted(pending), filename)
        raise kind(headline, errors, deaths, waiting, sorted(answers))

    def _ready(self, ranks: set[int], timeout: float) -> set[int]:
        """Return the ranks that answered or died, after ``timeout`` seconds at most."""
        owner = {self._crew.conns[rank]: rank for rank in ranks}
        owner |= {self._crew.processes[rank].sentinel: rank for rank in ranks}
        return {owner[handle] for handle in wait(owner, timeout)}

    def _death_of(self, rank: int, exit_code: int, filename: str) -> str:
        """Describe how a rank ended, and in which of the reader's lines."""
        stack = self._crew.stack(rank)
        place = stack and f" in {describe_stack(stack, self._sources, filename)}"
        return describe_death(exit_code, self._crew.native_stderr(rank), place)

    def _where(self, ranks: list[int], filename: str) -> dict[int, str]:
        """Say where each rank stands, and whether it waits there or computes."""
        for rank in ranks:
            self._crew.is_busy(rank)  # the next call counts from here
        time.sleep(0.05 if ranks else 0)
        verbs = {r: "run" if self._crew.is_busy(r) else "wait in" for r in ranks}
        return {
            rank: f"{verbs[rank]} {describe_stack(stack, self._sources, filename)}"
            for rank, stack in self._crew.ask_stacks(ranks).items()
        }

    def _pick(self, on: Iterable[int] | None) -> list[int]:
        """Return the ranks to run on, sorted; refuse those that do not exist."""
        ranks = list(range(self.world_size)) if on is None else sorted(set(on))
        bounds = f"ranks go from 0 to {self.world_size - 1}"
        if not ranks:
            raise ValueError(f"no rank to run on: {bounds}")
        for rank in ranks:
            if rank not in range(self.world_size):
                raise ValueError(f"there is no rank {rank}: {bounds}")
        return ranks
