"""One tool on one hang: attach it, let the code hang, read the tool's output."""

import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from allranks.base.report import RanksError
from allranks.clinic import outcomes, play
from allranks.clinic.specimens import PLACES, Specimen
from allranks.hangs import WAITED_FOR, attach, flight, tools, verdicts
from allranks.live.processes import RankProcesses
from allranks.live.ranks import Ranks

PATIENCE_S = 2.5  # seconds without progress, for tools that wait TIMEOUT_S themselves
LIMIT_S = 30.0  # seconds until a specimen counts as hung, progress or not
ASK_LIMIT_S = 2.0  # the same, before a tool asks processes that poll for each other
_LIMIT = re.compile(r"(?<=timedelta\()(?:milli)?seconds=[^()]+(?=\))")
_WAIT = re.compile(r"(?<=timeout=)\d+")  # in a command


@dataclass(frozen=True)
class Finding:
    """What one tool made of one hang.

    Attributes:
        verdict: one of ``verdicts.VERDICTS``.
        named: the ranks that it names.
        seconds: from the start of the code that hangs until the tool was done.
        words: what it says of each rank, or why it could not be attached.
        raw: what it printed, shortened to the part that matters.
    """

    verdict: str
    named: list[int] = field(default_factory=list)
    seconds: float | None = None
    words: str = ""
    raw: str = ""


class Look:
    """What a tool saw of ranks that hang, before they are ended; and when."""

    def __init__(self, tool: tools.Tool, place: Path) -> None:
        self._tool, self._place = tool, place
        self.seen, self.when = None, 0.0

    def __call__(self, processes: RankProcesses) -> None:
        """Let the tool look."""
        self.seen = self._tool.ask(processes, self._place)
        self.when = time.monotonic()


def measure(case: Specimen, key: str) -> Finding:
    """Run a case's broken cell on fresh ranks under one tool.

    Args:
        case: the specimen.
        key: of the tool, in ``tools.TOOLS``.
    """
    tool, meets, command = tools.TOOLS[key], meets_late(case), bool(case.commands)
    if excuse := tool.excuse(meets, command):
        return Finding(verdicts.NONE, words=excuse)
    num_ranks = int(PLACES.match(case.fields["runs on"])[2] or 0)
    case = _with_limit(case, limited=tool.attach is attach.limit_groups)
    given, code = case.given, case.cells["broken"]
    with (
        tempfile.TemporaryDirectory(prefix="allranks-") as place,
        Ranks(num_ranks or 1, timeout=LIMIT_S) as crew,
    ):
        look = Look(tool, Path(place))
        crew.run(play._prepare, place, not num_ranks, 0)
        # A case that makes its own group gets its limit in its text, by _with_limit;
        # the tool would make a second group.
        if tool.attach and not (meets and tool.attach is attach.limit_groups):
            crew.run(tool.attach, *tool.args)
        crew.run_cell(given, "given", quiet=True)
        if tool.ask:
            crew.on_stall = look
        asked = tool.says != tools.MESSAGE
        # Processes that poll for each other never stall, so a clock says when to ask
        # them.
        crew.timeout = ASK_LIMIT_S if asked and meets else LIMIT_S
        start, error, text = time.monotonic(), None, ""
        try:
            if command:
                text = play._judge_command(crew, case, "broken", 0).text
            else:
                crew.stall = play.STALL_S if asked else PATIENCE_S
                crew.run_cell(code, "broken", quiet=True)
        except RanksError as failure:
            error = failure
        end = look.when if look.seen is not None else time.monotonic()
    if asked:
        sources = {} if command else {"given": given, "broken": code}
        text, named = _listen(tool, look.seen, error, sources, num_ranks or 1)
        raw = _raw(look.seen, sources) if tool.says == tools.STACKS else text
    else:
        raw = text = outcomes.clean(text or _message(error))
        named = verdicts.in_message(text)
    verdict = verdicts.judge(named, WAITED_FOR[case.slug], text)
    seconds = round(end - start, 2) if text else None
    return Finding(verdict, sorted(named), seconds, text, raw)


def _with_limit(case: Specimen, limited: bool) -> Specimen:
    """Return the case with timeouts of TIMEOUT_S, or with ones that nothing reaches."""
    limit = f"seconds={tools.TIMEOUT_S}" if limited else "minutes=30"
    cells = case.cells | {"broken": _LIMIT.sub(limit, case.cells["broken"])}
    commands = dict(case.commands)
    if commands and not limited:
        commands["broken"] = _WAIT.sub("1800", commands["broken"])
    given = _LIMIT.sub(limit, case.given)
    return replace(case, given=given, cells=cells, commands=commands)


def meets_late(case: Specimen) -> bool:
    """Tell whether the processes hang before they have formed a group."""
    alone = case.fields["runs on"] == "one process"
    return alone or bool(case.commands) or "init_process_group(" in case.cells["broken"]


def _message(error: RanksError | None) -> str:
    """Return the last words of the ranks that raised or died."""
    if error is None:
        return ""
    words = {rank: outcomes.last_words(text) for rank, text in error.errors.items()}
    words |= error.deaths
    return "\n".join(f"rank {rank}: {words[rank]}" for rank in sorted(words))


def _listen(
    tool: tools.Tool,
    seen: dict[int, str | dict] | None,
    error: RanksError | None,
    sources: dict[str, str],
    world_size: int,
) -> tuple[str, set[int]]:
    """Return what a tool says when it is asked, and which ranks that names.

    Args:
        tool: which one.
        seen: what it saw of each rank, if it looks at them itself.
        error: what the ranks ended with, if they ended.
        sources: the code of the cells, by name; a command has none.
        world_size: number of ranks.
    """
    if tool.says == tools.REPORT:
        text = str(error or "")
        return text, verdicts.in_places(verdicts.places_in_report(text, world_size))
    if not seen:
        return "", set()
    if tool.says == tools.DUMPS:
        sentences, suspects = flight.compare(seen)
        return "\n".join(sentences), set(suspects)
    if not sources:  # a command has no cell, so take the line where torch waits
        frames = {rank: verdicts.innermost(stack) for rank, stack in seen.items()}
        return "\n".join(f"rank {rank}: {frames[rank]}" for rank in frames), set()
    places = verdicts.places_in_stacks(seen, sources)
    lines = [f"rank {rank}: {places[rank] or 'left the cell'}" for rank in sorted(seen)]
    return "\n".join(lines), verdicts.in_places(places)


def _raw(seen: dict[int, str] | None, sources: dict[str, str]) -> str:
    """Return the first rank's stack as the tool writes it, up to the reader's code."""
    if not seen or not sources:
        return ""
    lines = verdicts.main_thread(seen[0]).splitlines()
    last = [i for i, line in enumerate(lines) if re.search(r'["(]broken[":]', line)]
    text = "\n".join(lines[: last[-1] + 1] if last else lines)
    return re.sub(r"(?<=^Thread )\d+", "PID", outcomes.clean(text))
