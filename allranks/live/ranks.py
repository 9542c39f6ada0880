"""Live ranks: W processes that share a group and run what the parent sends them."""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import cloudpickle

from allranks.base.report import RanksInterrupted, say
from allranks.launch.status import Status
from allranks.live import capacity, jobs
from allranks.live.collect import STOPPED, Collector
from allranks.live.desync import find_desync
from allranks.live.interrupts import uninterrupted
from allranks.live.processes import RankProcesses
from allranks.live.screen import Hidden, Screen, Transcripts, choose
from allranks.topics.timelines.sums import Job

START_TIMEOUT = 60.0  # seconds for importing torch and forming the group
ANSWER_S = 2.0  # seconds for a question of the engine's own
SILENCE = " in which no rank printed or finished a collective"
MORE = "; {} --timeout {:g} allows more"
COPIED = 20_000_000  # bytes a second that all ranks receive at least, on a busy machine
OWN = ("rank", "local_rank", "world_size", "device")  # names that the ranks bring
UNSTARTED = "interrupted while the ranks were starting; none is left, so start again"
TWICE = "interrupted again before all had stopped; the next cell starts fresh ranks"


@dataclasses.dataclass(frozen=True)
class Lost:
    """The ranks cannot go on; the next call starts fresh ones.

    Attributes:
        reason: how they are out of step, if they are; else the last report says it all.
    """

    reason: str = ""

    def __str__(self) -> str:
        since = f", since {self.reason}" if self.reason else ""
        return f"(fresh ranks{since}: the variables of earlier cells are gone)"


class Ranks:
    """A group of ``world_size`` live processes; also a context manager.

    Args:
        world_size: number of processes, 1 to 64.
        device: ``"cpu"``, or an accelerator such as ``"cuda"``: device r for rank r.
        timeout: seconds without a print or the end of a collective until a call counts
            as hung, unless the call sets its own.
        backend: ``"gloo"``, ``"shm"`` or ``"link:eth1"``; by default torch's choice.
        gpus: give ranks virtual GPUs, ``cuda:0`` …, and a group with NCCL's rules.

    Attributes:
        outputs: what each rank printed in the last call.
        stall: seconds without any progress that count as a hang; None for no limit.
        keep_waiting: told where ranks wait before a stall ends them; True lets them be.
        on_stall: called with the processes before ranks that wait are ended.
        hold: whether ranks that wait when another one fails are kept for ``debug``.
        compare: whether ranks that are out of step after a job are an error; torch
            itself would not notice.

    Raises:
        ValueError: if an argument is impossible, here or on this machine.
        RuntimeError: on Windows.
        OSError: if temporary files or open files run out.
    """

    def __init__(
        self,
        world_size: int,
        device: str = "cpu",
        timeout: float = 60.0,
        backend: str = "",
        gpus: bool = False,
    ) -> None:
        self._asked = world_size, device, backend, gpus
        capacity.check_possible(*self._asked)
        if not timeout > 0:
            raise ValueError(f"timeout {timeout!r}: it must be more than 0 seconds")
        self._lock = threading.RLock()  # of the ranks; one call at a time
        self.world_size, self.device, self.backend = world_size, device, backend
        self.timeout, self.stall, self.hold = timeout, None, False
        self.compare = True
        self.on_stall: Callable[[RankProcesses], None] | None = None
        self.keep_waiting: Callable[[dict[int, str]], bool] | None = None
        self.outputs: list[str] = []
        self._crew: RankProcesses | None = None
        self._sources: dict[str, str] = {}  # text of each cell, by file name
        self._lost: Lost | None = None  # until the next call has said so
        self._held: set[int] = set()  # ranks that are stopped where they waited
        self._last: list[int] = []  # ranks of the last call that can be drawn
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
            timeout: seconds without a print or the end of a collective until the call
                counts as hung; by default the group's.
            on: the ranks to run on, by default all. Results come in rank order.
            quiet: don't print what the ranks print; it stays in ``outputs``.
            **kwargs: the function's keyword arguments.

        Raises:
            RanksError: if a rank fails, dies or hangs. If that leaves nobody waiting,
                the ranks keep their variables. Otherwise they are ended, and the next
                call starts fresh ones and says so.
            TypeError: if source text comes with arguments.
            ValueError: if ``on`` names no rank, or one that does not exist; and in a
                process that was forked from the one of the ranks.
        """
        if callable(work):
            job = jobs.call(work, args, kwargs)
        elif args or kwargs:
            raise TypeError("source text takes no arguments; send a function instead")
        else:  # the last expression comes back, so a rank need not show it as well
            job = jobs.source(work, "<source>", echo=False, values=True)
        return self._send(job, on, timeout, Hidden() if quiet else None)

    def run_cell(
        self,
        source: str,
        filename: str,
        timeout: float | None = None,
        on: Iterable[int] | None = None,
        quiet: bool = False,
        values: bool = False,
        screen: Screen | None = None,
    ) -> list[Any]:
        """Run source text as a cell, whose last expression each rank shows.

        Args:
            source: the cell's text.
            filename: the name that tracebacks and reports give it.
            timeout, on, quiet: as in ``run``.
            values: whether to return the last expressions; otherwise each is None.
            screen: where the output appears; by default as ``screen.choose`` finds.

        Raises:
            RanksError: as in ``run``.
            SyntaxError: if the text is not Python; no rank has run it then.
            ValueError: if it uses a magic of the kernel.
        """
        # It is compiled here, before the lock and before ranks that are lost start
        # again: a typo changes nothing.
        job = jobs.source(source, filename, echo=True, values=values)
        return self._send(job, on, timeout, Hidden() if quiet else screen)

    def push(
        self,
        values: dict[str, Any],
        on: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Set variables of the ranks; each rank gets a copy.

        Args:
            values: by the variables' names.
            on, timeout: as in ``run``.
        Raises:
            TypeError: if a value cannot be pickled.
            ValueError: if a name belongs to the ranks, such as ``rank``, or if the
                copies do not fit into memory.
        """
        if own := [name for name in values if name in OWN]:
            raise ValueError(
                f"{own[0]}: each rank has a value of its own; push another name"
            )
        try:  # here and once: W ranks read the same bytes from one file
            packed = cloudpickle.dumps(values)
        except Exception as error:
            names = ", ".join(values)
            raise TypeError(f"{names}: cannot go to the ranks ({error})") from None
        capacity.check_memory(", ".join(values), len(packed), len(self.check(on)))
        self._send(("push", packed), on, timeout, Hidden())

    def pull(
        self,
        name: str,
        on: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return a variable of the ranks, by rank.

        Args:
            name: of the variable.
            on, timeout: as in ``run``.
        Raises:
            RanksError: if a rank has no such variable, or it cannot leave its rank.
        """
        return self._send(("pull", name), on, timeout, Hidden())

    def debug(self, rank: int, ask: Callable[[str], str]) -> None:
        """Open the debugger where a rank failed, while the other ranks hold.

        Args:
            rank: the one to look at.
            ask: what shows a prompt and returns the reader's line; "" ends the session.

        Raises:
            ValueError: if the rank does not exist, or has no exception to look at.
        """
        [rank] = self.check([rank])
        there = self._crew is not None and rank not in self._held
        if not there or not self._ask(("debug",), [rank], float("inf"), ask):
            raise ValueError(f"rank {rank} has no exception to look at")

    def spans(self) -> dict[int, Job]:
        """Return when each rank worked and waited in the last call, by rank.

        Raises:
            ValueError: if there was none, or its ranks have ended.
        """
        if not (told := self._last and self._ask(("spans",), self._last)):
            raise ValueError("there is no cell to draw, or its ranks have ended")
        return dict(zip(self._last, told, strict=True))

    def status(self) -> str:
        """Say in one line which processes are alive."""
        if self._crew is None or self._lost is not None:
            return f"{self.world_size} ranks, ended; the next cell starts them afresh"
        pids = ", ".join(str(p.pid) for p in self._crew.processes)
        where = capacity.where(*self._asked)
        return f"{self.world_size} ranks live on {where}, process ids {pids}"

    def check(self, on: Iterable[int] | None) -> list[int]:
        """Return the ranks to run on, sorted: by default all.

        Raises:
            ValueError: if there is none, or one of them does not exist.
        """
        ranks = list(range(self.world_size)) if on is None else sorted(set(on))
        bounds = f"ranks go from 0 to {self.world_size - 1}"
        if not ranks:
            raise ValueError(f"no rank to run on: {bounds}")
        if strangers := [r for r in ranks if r not in range(self.world_size)]:
            raise ValueError(f"there is no rank {strangers[0]}: {bounds}")
        return ranks

    def close(self) -> None:
        """End all ranks at once; a second call does nothing."""
        crew, self._crew = self._crew, None
        self._held, self._last = set(), []
        if crew is not None:
            with uninterrupted():
                crew.end()

    def __enter__(self) -> Self:
        self._status = Status(f"{self.world_size} live ranks at work")
        self._status.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._status.__exit__()
        self.close()

    def _start(self) -> None:
        try:
            self._crew = RankProcesses(*self._asked)
            collector = Collector(self._crew, self.check(None), {}, "", Hidden())
            if error := collector.collect(START_TIMEOUT).error():
                raise error
            self._crew.issued = collector.outcome.issued
        except BaseException as error:
            with contextlib.suppress(KeyboardInterrupt):
                self.close()
            if isinstance(error, KeyboardInterrupt):
                raise RanksInterrupted(UNSTARTED) from None
            raise

    def _send(
        self,
        job: tuple,
        on: Iterable[int] | None,
        timeout: float | None,
        screen: Screen | None = None,
    ) -> list[Any]:
        """Send a job to the ranks, show what they print, and return their results."""
        ranks, screen = self.check(on), screen or choose()
        with self._whole():
            if self._lost is not None:
                self.close()  # those that were held for the debugger
            if self._crew is None:
                self._start()
            if self._lost is not None:
                say(str(self._lost))
                self._lost = None
            filename = job[2] if job[0] == "source" else ""
            self._sources[filename] = job[1] if filename else ""
            collector = Collector(self._crew, ranks, self._sources, filename, screen)
            transcripts = self._collect(collector, job, ranks, timeout)
        screen.finish(transcripts)
        if error := collector.outcome.error():
            raise error
        return [jobs.unpack(collector.outcome.answers[rank]) for rank in ranks]

    def _collect(
        self, collector: Collector, job: tuple, ranks: list[int], timeout: float | None
    ) -> Transcripts:
        """Wait until a job has ended, and decide whether the ranks can go on.

        Returns:
            What they have shown, if the job was the reader's code.
        """
        runs, outcome = jobs.is_code(job), collector.outcome
        limit, magic = timeout or self.timeout, "%%ranks" if runs else f"%{job[0]}"
        if job[0] == "push":
            limit += 0 if timeout else len(job[1]) * len(ranks) // COPIED
            job = "push", self._crew.store(job[1])
        for rank in ranks if runs else ():
            self._crew.begin_cell(rank)
        collector.on_stall = self.on_stall
        collector.keep_waiting = self.keep_waiting
        hint = (SILENCE if runs else "") + MORE.format(magic, 10 * limit)
        hint = "" if timeout or self.stall else hint
        spins = self.device != "cpu"  # a rank that waits for a GPU does
        collector.collect(limit, self.stall, spins, job=job, hint=hint)
        if job[0] == "push":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(job[1])  # it may be large, and its folder one in memory
        if outcome.error():
            self._lost = self._why_lost(collector)
            if outcome.waiting and self._lost is None:
                outcome.note = STOPPED
            if (outcome.waiting or outcome.deaths) and (said := collector.difference()):
                outcome.note = said
        elif runs and self.compare:
            reason = collector.judge()
            self._lost = Lost(reason) if reason else None
        transcripts = {rank: self._crew.read_output(rank) for rank in ranks if runs}
        for rank in transcripts.keys() - outcome.deaths.keys():
            transcripts[rank].native = self._crew.native_stderr(rank)
        if runs:
            self.outputs, self._last = [t.text() for t in transcripts.values()], ranks
        if self._lost is not None and self.hold and outcome.errors:
            self._held = collector.pending | set(outcome.deaths)
            self._crew.hold(collector.pending)
        elif self._lost is not None:
            self.close()
        return transcripts

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Do what is within as a whole: one thread at a time, and nothing half done.

        Ranks that were left in the middle of a job would answer the next one wrongly.
        """
        if self._crew is not None and self._crew.owner != os.getpid():
            raise ValueError(
                f"these ranks answer process {self._crew.owner}, and this one was "
                f"forked from it: start Ranks({self.world_size}) here"
            )
        with self._lock:
            try:
                yield
            except BaseException as error:
                self._lost = Lost()
                with contextlib.suppress(KeyboardInterrupt):
                    self.close()
                if type(error) is KeyboardInterrupt:
                    raise RanksInterrupted(TWICE) from None
                raise

    def _why_lost(self, collector: Collector) -> Lost | None:
        """Return None if the ranks can go on after a failure.

        They can if nobody is dead or still waits, if all have joined the same
        collectives, so that the next one finds its partners, and if a barrier works.
        """
        gone = collector.outcome.headline and collector.stop()  # or out of time
        gone = gone or collector.outcome.deaths or collector.pending
        if gone or not (issued := self._ask(("issued",), self.check(None))):
            return Lost()
        if reason := find_desync(issued):
            return Lost(reason)
        return None if self._ask(("meet",), self.check(None)) else Lost()

    def _ask(
        self,
        question: tuple,
        ranks: list[int],
        timeout: float = ANSWER_S,
        ask: Callable[[str], str] | None = None,
    ) -> list[Any] | None:
        """Ask ranks something for the engine; None unless all of them answer."""
        with self._whole():
            collector = Collector(self._crew, ranks, self._sources, "", Hidden())
            if collector.collect(timeout, ask=ask, job=question).error():
                if collector.pending:  # else they would answer this instead of a job
                    self._lost = Lost()
                return None
        return [jobs.unpack(collector.outcome.answers[rank]) for rank in ranks]
