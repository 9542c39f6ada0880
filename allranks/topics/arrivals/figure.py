"""Four ranks and one all_reduce: whoever comes early waits, and maybe for ever."""

import itertools
from typing import Any

import traitlets

from allranks.base.picture import Picture
from allranks.base.report import RanksError, fold, name_ranks
from allranks.base.units import amount
from allranks.live.ranks import Ranks
from allranks.topics.arrivals import sums
from allranks.topics.arrivals.picture import lanes
from allranks.topics.kit.explorable import Explorable

FIRST = sums.FIRST
WORLD_SIZE, TIMEOUT = 4, 3  # ranks; seconds that the cell may take
LATEST = 2500  # ms


class Arrivals(Explorable):
    """Four ranks that call all_reduce one by one, or never.

    Traits:
        arrives: when each rank calls it, in ms; None for never.
    """

    name = "arrivals"

    arrives = traitlets.List(traitlets.Int(allow_none=True), FIRST).tag(sync=True)

    @staticmethod
    def compute(arrives: list[int | None]) -> dict[str, Any]:
        """Say who waits for whom, what each rank holds then, and what the cell prints.

        Raises:
            ValueError: if there are not four ranks, or one comes too late.

        >>> print(Arrivals.compute([400, None, 600, 1300])["output"])
        rank 1: tensor([1.])
        timeout after 3 s
        ranks 0, 2 and 3 wait in `dist.all_reduce(x)` at cell line 6
        rank 1 finished
        """
        if len(arrives) != WORLD_SIZE:
            raise ValueError(f"arrives must have {WORLD_SIZE} entries")
        for rank, at in enumerate(arrives):
            if at is not None and not 0 <= at <= LATEST:
                raise ValueError(
                    f"rank {rank} cannot come after {at} ms: 0 to {LATEST}, or never"
                )
        seconds = [None if at is None else at / 1000 for at in arrives]
        begins, waits = sums.waits(seconds, TIMEOUT)
        present = [rank for rank, at in enumerate(arrives) if at is not None]
        absent = [rank for rank, at in enumerate(arrives) if at is None]
        # Each rank comes with its own number, and all_reduce adds them up, but only
        # once all ranks have called it.
        holds = list(range(WORLD_SIZE))
        if not absent:
            holds = [sum(holds)] * WORLD_SIZE
        return {
            "begins": begins,
            "waits": waits,
            "waited_s": sum(waits),
            "holds": holds,
            "code": cell(arrives),
            "output": _output(arrives, present, absent, holds),
            "summary": _summary(seconds, present, absent, waits),
        }

    @staticmethod
    def picture(arrives: list[int | None]) -> Picture:
        """Draw the four ranks over time."""
        facts = Arrivals.compute(arrives)
        seconds = [None if at is None else at / 1000 for at in arrives]
        return lanes(seconds, TIMEOUT, facts["holds"])

    def measure(self) -> dict[str, Any]:
        """Run the cell on four live ranks, and return what it really prints."""
        body = self.facts["code"].partition("\n")[2]
        failed = ""
        with Ranks(WORLD_SIZE) as ranks:
            ranks.run("import time, torch")  # so that no import counts as work
            try:
                ranks.run_cell(f"\n{body}", "ranks cell", timeout=TIMEOUT, quiet=True)
            except RanksError as error:
                failed = f"{error}"
            printed = fold(ranks.outputs, list(range(WORLD_SIZE)))
        output = "\n".join(filter(None, [printed, failed]))
        same = output == self.facts["output"]
        words = "just as shown above" if same else f"not as shown above:\n{output}"
        return {"same": same, "output": output, "summary": f"Four live ranks: {words}."}


def cell(arrives: list[int | None]) -> str:
    """Return the notebook cell that does what the figure shows."""
    absent = [rank for rank, at in enumerate(arrives) if at is None]
    work = [0 if at is None else at / 1000 for at in arrives]
    call = "dist.all_reduce(x)"
    if absent:
        call = f"if rank not in {absent}:\n    {call}"
    times = ", ".join(f"{at:g}" for at in work)
    lines = [f"%%ranks --timeout {TIMEOUT}", "import time"]
    lines += ["x = torch.tensor([float(rank)])", f"time.sleep([{times}][rank])"]
    return "\n".join([*lines, call, "x"])


def _output(
    arrives: list[int | None], present: list[int], absent: list[int], holds: list[int]
) -> str:
    """Return what the cell prints, in the words of the real report."""
    done = absent if absent else present
    shown = fold([f"tensor([{holds[rank]}.])" for rank in done], done)
    if not (present and absent):
        return shown
    lines = cell(arrives).splitlines()
    at = next(i for i, line in enumerate(lines, 1) if "all_reduce" in line)
    place = f"wait in `{lines[at - 1].strip()}` at cell line {at}"
    where = dict.fromkeys(present, place)
    headline = f"timeout after {TIMEOUT} s"
    return f"{shown}\n{RanksError(headline, waiting=where, finished=absent)}"


def _summary(
    seconds: list[float | None],
    present: list[int],
    absent: list[int],
    waits: list[float],
) -> str:
    if not present:
        return "Nobody calls all_reduce, so nobody waits; each keeps its own number."
    waited = amount(sum(waits), "s")
    if absent:
        calls = "call" if len(absent) > 1 else "calls"
        who, those = name_ranks(absent), name_ranks(present)
        wait = "wait" if len(present) > 1 else "waits"
        return (
            f"{_capital(who)} never {calls} all_reduce, so {those} {wait} in it, "
            f"{waited} in all, until the cell's timeout ends that after {TIMEOUT} s. "
            "A script would wait for half an hour, and print nothing."
        )
    if not sum(waits):
        return (
            f"All four call all_reduce after {amount(seconds[0], 's')}, so nobody "
            "waits. Then each rank holds 0 + 1 + 2 + 3 = 6."
        )
    # A rank waits until the last one has called, however early it came.
    last = max(present, key=lambda rank: seconds[rank])
    return (
        f"Rank {last} comes last, after {amount(seconds[last], 's')}. The others wait "
        f"for it, and their waits add up to {waited}. Then each rank holds 0 + 1 + 2 + "
        "3 = 6."
    )


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def cases() -> list[dict]:
    """Return states, impossible ones too, in which Python and JavaScript must agree."""
    times = 0, 400, 1250, 2500, None
    good = itertools.product(times[1:], times, times[::2], times[1:])
    bad = [[at, 1, 2, None] for at in (-1, 2501, 9999)] + [[1] * n for n in range(18)]
    bad.remove([1] * 4)
    return [{"arrives": list(state)} for state in (*good, *bad)]
