"""Wait for the ranks' answers; notice who fails, dies or hangs, and who waits."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from allranks.base.report import (
    RanksError,
    RanksInterrupted,
    describe_death,
    describe_stack,
    group_ranks,
    name_ranks,
)
from allranks.live.calls import difference
from allranks.live.desync import Issued, find_desync
from allranks.live.patience import GRACE, Patience
from allranks.live.processes import RankProcesses
from allranks.live.screen import TICK, Screen

OBEY_S = 5.0  # seconds that a busy rank has to obey an interrupt
STATUS_S = 1.0  # seconds between two looks at where the ranks stand
STOPPED = "variables are kept; each rank stopped where it was, perhaps a step apart"


@dataclasses.dataclass
class Outcome:
    """How a job ended on each rank.

    Attributes:
        answers: the pickled value of each rank that finished, by rank.
        issued: what each of them has issued so far, if the job was the reader's code.
        errors: the traceback of each rank that raised.
        deaths: how each rank that died ended.
        waiting: where each rank stands that has not ended.
        headline: what ended the waiting, if no rank did.
        note: what else the reader has to know.
        kind: of the error that all this makes.
    """

    answers: dict[int, bytes | None] = dataclasses.field(default_factory=dict)
    issued: dict[int, Issued] = dataclasses.field(default_factory=dict)
    errors: dict[int, str] = dataclasses.field(default_factory=dict)
    deaths: dict[int, str] = dataclasses.field(default_factory=dict)
    waiting: dict[int, str] = dataclasses.field(default_factory=dict)
    headline: str = ""
    note: str = ""
    kind: type[RanksError] = RanksError

    def error(self) -> RanksError | None:
        """Return the report, or None if all ranks finished."""
        if not (self.errors or self.deaths or self.waiting or self.headline):
            return None
        finished = sorted(self.answers)
        return self.kind(
            self.headline, self.errors, self.deaths, self.waiting, finished, self.note
        )


class Collector:
    """Sends a job to ranks and waits for their answers.

    Args:
        crew: the processes.
        ranks: those that get the job.
        sources: the text of each cell, by the file name under which it was compiled.
        filename: of the cell that runs; "" if it is none.
        screen: where output appears meanwhile.
    """

    def __init__(
        self,
        crew: RankProcesses,
        ranks: list[int],
        sources: Mapping[str, str],
        filename: str,
        screen: Screen,
    ) -> None:
        self._crew, self._ranks = crew, ranks
        self._sources, self._filename = sources, filename
        self._screen = screen
        self.on_stall: Callable[[RankProcesses], None] | None = None
        self.keep_waiting: Callable[[dict[int, str]], bool] | None = None
        self.pending = set(ranks)
        self.outcome = Outcome()
        self._serial = 0  # of the job; ranks that start speak of number 0

    def collect(
        self,
        limit: float,
        stall: float | None = None,
        spins: bool = False,
        ask: Callable[[str], str] | None = None,
        job: tuple | None = None,
        hint: str = "",
    ) -> Outcome:
        """Wait for every rank; once one has failed, only while others make progress.

        The job is sent here, so that an interrupt finds nobody at work unwatched.

        Args:
            limit, stall, spins: how long to wait, as in ``Patience``.
            ask: what asks the reader for a line, if a rank may want one.
            job: what to send first; None if the ranks have something to say anyway.
            hint: what else to say when the limit is reached.
        """
        outcome = self.outcome
        try:
            # Before the job is sent, so that the first print is progress.
            patience = Patience(self._crew, self._ranks, limit, stall, spins)
            if job:
                self._serial = self._crew.next_serial()
            for rank in self._ranks if job else ():
                with contextlib.suppress(OSError):  # it has died, as will be seen below
                    self._crew.conns[rank].send((self._serial, job))
            if self._wait(patience, ask) == "late":
                outcome.headline = f"timeout after {limit:g} s{hint}"
        except KeyboardInterrupt:
            outcome.headline, outcome.kind = "interrupted", RanksInterrupted
        if self.pending:
            if self.on_stall:
                self.on_stall(self._crew)
            if not outcome.waiting:
                outcome.waiting = self._where(sorted(self.pending))
        return outcome

    def _wait(
        self, patience: Patience, ask: Callable[[str], str] | None
    ) -> Literal["stalled", "late"] | None:
        """Take messages until every rank has ended, or patience has; say if it has."""
        outcome, began = self.outcome, time.monotonic()
        last_poll, status = began, ""
        next_draw, next_status = began + TICK, began + STATUS_S
        while self.pending:
            now = time.monotonic()
            failed = bool(outcome.errors or outcome.deaths)
            verdict = patience.tick(now - last_poll, self.pending, failed)
            last_poll = now
            if verdict == "stalled" and not failed and self.keep_waiting:
                where = self._where(sorted(self.pending))
                verdict = None if self.keep_waiting(where) else verdict
                # The report says what was told: a rank may move on meanwhile.
                outcome.waiting, patience.idle = where if verdict else {}, 0.0
            if verdict:
                return verdict
            if now >= next_draw:
                if self._screen.progress and now >= next_status:
                    status, next_status = self._status(now - began), now + STATUS_S
                self._draw(status)
                next_draw = time.monotonic() + TICK
            timeout = min(patience.next_poll(), max(0, next_draw - now))
            for rank, spoke in self._crew.ready(self.pending, timeout).items():
                patience.idle = 0.0
                self._receive(rank, spoke, ask)
        return None

    def difference(self, over: bool = False) -> str | None:
        """Say which ranks called another collective than the others, or None."""
        calls = self._crew.calls(self._ranks)
        return difference(calls, self._name_place, over)

    def judge(self) -> str | None:
        """Make it an error if ranks that all ended well are out of step.

        The next collective would meet one that only some ranks have begun, and mix its
        numbers with others, in silence.

        A job on some of the ranks may leave it to another one to join the rest.

        Returns:
            How they are out of step, for the next cell to say; None if they can go on.
        """
        issued, before = self.outcome.issued, self._crew.issued
        self._crew.issued = before | issued
        if len(issued) < len(self._crew.processes):
            return None
        if all(issued[rank] == before.get(rank) for rank in issued):
            return None  # this job has called nothing
        if any(one.failed for one in issued.values()):
            return None  # a job has caught the error of a collective, so it knows
        # Calls of unequal sizes are in step, and gloo mixes them all the same.
        reason = self.difference(over=True)
        reason = reason or find_desync(issued.values(), messages=False)
        if reason:
            self.outcome.headline = f"{reason}{self._last_calls()}"
            self.outcome.note = "the next cell starts fresh ranks"
        return reason

    def _last_calls(self) -> str:
        """Say in indented lines which collective each rank called last."""
        last = {
            rank: f"{c[-1].what} at {self._name_place(c[-1].file, c[-1].line)}"
            for rank, c in self._crew.calls(self._ranks).items()
            if c
        }
        return "".join(f"\n  {who} last called {it}" for who, it in group_ranks(last))

    def _name_place(self, file: str, line: int) -> str:
        cell = "cell" if file == self._filename else Path(file).name
        return f"{cell} line {line}" if line else "an unknown line"

    def stop(self) -> bool:
        """Interrupt the ranks that have not ended, and wait for those that obey.

        Python code obeys as soon as it gets a processor, so a busy rank has more time.
        A rank inside a collective neither obeys nor computes.

        Returns:
            Whether that has ended a process, such as another program in a rank's place.
        """
        self._crew.interrupt(self.pending)
        began = moved = time.monotonic()
        told, self.outcome = self.outcome, Outcome()  # how they stop is no news
        while self.pending and time.monotonic() < min(moved + GRACE, began + OBEY_S):
            for rank, spoke in self._crew.ready(self.pending, 0.05).items():
                self._receive(rank, spoke, None)
            if any(self._crew.is_busy(rank) for rank in self.pending):
                moved = time.monotonic()
        ended, self.outcome = bool(self.outcome.deaths), told
        return ended

    def _draw(self, status: str) -> None:
        """Show what the ranks have printed so far, if anybody can see it."""
        if self._screen.live:
            outputs = {rank: self._crew.read_output(rank) for rank in self._ranks}
            self._screen.update(outputs, status)

    def _receive(
        self, rank: int, spoke: bool, ask: Callable[[str], str] | None
    ) -> None:
        """Take a message of a rank, or note that it has died."""
        match self._crew.receive(rank, spoke):
            case ("display" | "clear", *_) as message:
                self._crew.transcripts[rank].message(message)
            case ("say", text):
                print(text, end="")
            case ("ask", prompt):
                self._crew.conns[rank].send(ask(prompt) if ask else "")
            case ("done", serial, *_) if serial != self._serial:
                pass  # the answer to a job that nobody waits for any more
            case ("done", _, value, None, issued):
                self.pending.discard(rank)
                self.outcome.answers[rank] = value
                self.outcome.issued[rank] = issued
            case ("done", _, _, error, _):
                self.pending.discard(rank)
                self.outcome.errors[rank] = error
            case exit_code:
                self.pending.discard(rank)
                self.outcome.deaths[rank] = self._death_of(rank, exit_code)

    def _death_of(self, rank: int, exit_code: int | None) -> str:
        """Describe how a rank ended, and in which of the reader's lines."""
        if exit_code is None:
            return "closed its connection to the notebook"
        stack = self._crew.stack(rank)
        place = stack and f" in {self._place(stack)}"
        return describe_death(exit_code, self._crew.native_stderr(rank), place)

    def _where(self, ranks: list[int]) -> dict[int, str]:
        """Say where each rank stands, and whether it waits there or computes."""
        for rank in ranks:
            self._crew.is_busy(rank)  # the next call counts from here
        time.sleep(0.05 if ranks else 0)
        busy = {r: self._crew.is_busy(r, whole=False) for r in ranks}
        verbs = {r: "run" if busy[r] else "wait in" for r in ranks}
        silent = {r: said for r in ranks if (said := self._crew.why_silent(r))}
        stacks = self._crew.ask_stacks([rank for rank in ranks if rank not in silent])
        places = {r: f"{verbs[r]} {self._place(s)}" for r, s in stacks.items()}
        return {rank: (places | silent)[rank] for rank in ranks}

    def _status(self, seconds: float) -> str:
        """Say in one line who has finished, and where the others are."""
        parts = [f"{seconds:.0f} s"]
        if done := sorted(set(self._ranks) - self.pending):
            parts.append(f"{name_ranks(done)} finished")
        places: dict[str, list[int]] = {}
        for rank, stack in self._crew.ask_stacks(sorted(self.pending)).items():
            places.setdefault(self._place(stack), []).append(rank)
        parts += [f"{name_ranks(ranks)} in {place}" for place, ranks in places.items()]
        return "; ".join(parts)

    def _place(self, stack: str) -> str:
        return describe_stack(stack, self._sources, self._filename)
