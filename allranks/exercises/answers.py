"""The answers of a check: turn the report of live ranks into a few calm lines."""

import json
import linecache
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from allranks.base.report import RanksError, RanksInterrupted, name_ranks
from allranks.exercises import rank_side
from allranks.exercises.files import Exercise
from allranks.exercises.rank_side import Place

MAX_PRINTED = 8  # lines of what the reader's function printed
_BY_TWO = re.compile(r"(send|recv)\w*\(")
_LOST = re.compile(r"Connection (reset|closed|refused)|closed by peer|Broken pipe")
_WAIT = re.compile(r"(wait in|run) `(.*)` at (.*) line (\d+)", re.DOTALL)


@dataclass(frozen=True, repr=False)
class Answer:
    """What a check found. Its text has already been printed by ``check``.

    Attributes:
        passed: whether every case passed on every world size.
        status: ``right``, ``stub``, ``wrong``, ``error``, ``hang``, ``stopped`` or
            ``no exercise``.
        message: the whole text.
        cases: the names of the cases, if all of them passed.
    """

    passed: bool
    status: str
    message: str
    cases: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.message

    def __bool__(self) -> bool:
        return self.passed

    def _ipython_display_(self) -> None:
        """Show nothing, because the text has already been printed."""


def are_together(waiting: Mapping[int, str], world_size: int) -> bool:
    """Tell whether all ranks wait in one and the same line, for no single rank.

    Such a collective has been called by everybody, so it should end.

    >>> are_together({0: "wait in `dist.barrier()` at a line 2"}, world_size=2)
    False
    """
    if len(waiting) < world_size or len(set(waiting.values())) > 1:
        return False
    return waiting[0].startswith("wait") and not _BY_TWO.search(waiting[0])


def explain(
    exercise: Exercise,
    world_size: int,
    error: RanksError,
    outputs: list[str],
    place: Place,
) -> Answer:
    """Turn the report of live ranks into one answer.

    Args:
        exercise: the one that was tried.
        world_size: the number of ranks.
        error: their report.
        outputs: what each rank printed.
        place: where the reader's function is.
    """
    name = exercise.name
    verdicts = {}
    for rank, text in error.errors.items():
        _, found, facts = text.partition("Verdict: {")
        facts = json.loads("{" + facts) if found else {"kind": "unusable", "text": text}
        verdicts[rank] = facts
    alone = max(exercise.world_sizes) == 1
    printed = [_cut(output) for output in outputs]
    # When a rank dies, its neighbors fail as well, with a lost connection: then the
    # death is the answer, and not what they say.
    orphans = all(_LOST.search(facts["text"]) for facts in verdicts.values())
    if verdicts and not (error.deaths and orphans):
        rank = min(verdicts)
        facts = verdicts[rank]
        lines, status = _lines(facts, name, place)
    elif error.deaths:
        rank = min(error.deaths)
        lines, status = [f"it {error.deaths[rank].splitlines()[0]}"], "error"
    else:
        rank = min(error.waiting, default=0)
        lines = _waiting(name, error, place, world_size)
        status = "stopped" if isinstance(error, RanksInterrupted) else "hang"
    case, own = printed[rank]
    on = [] if alone else [f"{world_size} ranks" if world_size > 1 else "1 rank"]
    on += [f"case “{case}”"] if case else []
    on += [f"rank {rank}"] if not alone and status not in ("hang", "stopped") else []
    head = {"stub": "still raises NotImplementedError", "hang": "it hangs"}
    head |= {"error": "it fails", "stopped": "stopped"}
    if are_together(error.waiting, world_size):
        head["hang"] = "it does not go on"
    text = f"{name}: {head.get(status, 'not yet')}."
    text += f" {_sentence(', '.join(on))}:" if on else ""
    text = "\n".join([text, *(f"  {line}" for part in lines for line in _fill(part))])
    if own and status != "stub":
        text += "\n  It printed:\n" + textwrap.indent("\n".join(own), "    ")
    return Answer(False, status, text)


def _lines(facts: dict, name: str, place: Place) -> tuple[list[str], str]:
    """Return the lines that a rank's verdict makes, and the status of the answer."""
    if facts["kind"] == "wrong":
        return [_sentence(facts["text"])], "wrong"
    if facts["kind"] == "unusable":
        text = f"What {name} returned, or left behind, is of no use to the check: "
        return [text + facts["text"]], "wrong"
    code = linecache.getline(place.file, facts["line"]).strip()
    where = _sentence(facts["where"])
    lines = [f"{where}: {code}" if code else f"{where}:", facts["text"]]
    return lines, facts["kind"]


def _waiting(name: str, error: RanksError, place: Place, world_size: int) -> list[str]:
    """Say where each rank is: in the reader's function, or after it."""
    short = place.file.rpartition("/")[2]
    inside: dict[str, list[int]] = {}
    outside = list(error.finished)
    for rank, text in error.waiting.items():
        match = _WAIT.match(text)
        if match and match[3] == short:
            line = int(match[4])
            where = f"line {line - place.first + 1} of your {name}"
            if not place.first <= line <= place.last:
                where = f"line {line} of that cell"
            verb = "wait" if match[1] == "wait in" else "compute"
            text = f"{verb} in {where}: {match[2]}"
            inside.setdefault(text, []).append(rank)
        # The file in which a rank waits for the next cell: it is through with the
        # function.
        elif match and match[3] == "rank_side.py":
            outside.append(rank)
        else:
            inside.setdefault(text, []).append(rank)
    lines = []
    for text, ranks in inside.items():
        verb, _, rest = text.partition(" ")
        who = name_ranks(ranks) if world_size > 1 else "it"
        verb = f"{verb}s" if len(ranks) == 1 else verb
        lines.append(f"{who} {verb} {rest}")
    if outside and inside:
        lines.append(f"{name_ranks(outside)} left your {name}.")
    if not inside:
        lines.append(f"your {name} has ended, and the check cannot go on: ")
        lines[-1] += "something that was started has not ended."
    elif world_size == 1 and are_together(error.waiting, 1):
        lines.append(
            "No other rank is needed. If this can end, the machine is too busy:"
        )
        lines[-1] += " check again."
    # A message needs one other rank, a collective all of them: each gets its own hint.
    elif world_size > 1 and any(t.startswith("wait") for t in inside):
        by_two = [bool(_BY_TWO.search(t)) for t in inside if t.startswith("wait")]
        if any(by_two):
            lines.append("A send ends when the other side receives, and the reverse.")
        if are_together(error.waiting, world_size):
            lines.append(
                "All ranks have come to this line. If they bring the same shapes, to "
                "the same group, after the same calls, then the machine is too busy: "
                "check again."
            )
        elif not all(by_two):
            lines.append(
                "A collective ends when every rank has called it, in one order."
            )
    if str(error).startswith("timeout"):
        lines.append(f"stopped: {str(error).splitlines()[0]}.")
    return [_sentence(line) for line in lines]


def _cut(output: str) -> tuple[str, list[str]]:
    """Return the case that a rank has reached, and what was printed in it."""
    _, _, rest = output.rpartition(rank_side.MARK)
    case, _, own = rest.partition("\n")
    if rank_side.MARK not in output:
        case, own = "", output
    lines = own.rstrip().splitlines()
    if len(lines) > MAX_PRINTED:
        lines[MAX_PRINTED:] = [f"… {len(lines) - MAX_PRINTED} more lines"]
    return case, lines


def _sentence(text: str) -> str:
    """Capitalize a text, unless it begins with a name such as torch.load or w1."""
    word = text.partition(" ")[0].rstrip(",:")
    return text[:1].upper() + text[1:] if word.isalpha() else text


def _fill(text: str) -> list[str]:
    """Wrap the lines of a text."""
    return [part for line in text.splitlines() for part in textwrap.wrap(line, 86)]
