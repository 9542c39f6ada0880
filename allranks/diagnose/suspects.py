"""Which failures of the clinic does a log show? Nothing is named without a sign.

book/_static/diagnose.js ranks in the same way. A change belongs in both.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

from allranks.clinic.cases import ECHO, FULL, KEYS, MAYBE, OURS, UNLESS, WITH
from allranks.clinic.specimens import Specimen
from allranks.diagnose.evidence import ended, foreign, meet, ours
from allranks.diagnose.search import TRIES, Hit, find, find_folded, possible
from allranks.diagnose.signs import Sign, signs_of
from allranks.diagnose.text import Log

SHOWN = 3
BRIEF = 12  # lines of a paste in which a warning is the question
REST = 4  # lines in which NCCL goes on with what it says of an error
_WARNING = re.compile(r"\[W[\d ]|\bW\d{4} |Warning|WARNING", re.ASCII)
_DIGEST = re.compile(r"ChildFailedError: *$")  # torchrun's, of an error before
_RAISED = re.compile(r"(?:Error|Exception): ")
_LATE = WITH, UNLESS  # not looked for in vain
_LEVELS = {FULL: 0, MAYBE: 1, ECHO: 2, OURS: 0}
_ERRORS = "Error: ", "Exception: ", "error: "


@dataclass
class Suspect:
    """A case, and the hits of its signs."""

    case: Specimen
    order: int
    hits: list[tuple[Sign, Hit]] = field(default_factory=list)

    @cached_property
    def level(self) -> str:
        """The best kind of a sign that matched; a line of code counts for less."""
        names = list(_LEVELS)
        levels = [
            min(_LEVELS[sign.kind] + hit.weak, _LEVELS[ECHO])
            for sign, hit in self.hits
            if sign.kind != WITH
        ]
        return names[min(levels)]

    @property
    def first(self) -> int:
        """The first line that names it."""
        return min(hit.first for sign, hit in self.hits if sign.kind != WITH)

    @property
    def supported(self) -> bool:
        """Whether a full sign matched, or a ``with`` sign if the case has any."""
        kinds = {sign.kind for sign, _ in self.hits}
        sure = {FULL, OURS, WITH} & kinds
        return bool(sure) or WITH not in dict(self.case.signs)

    @property
    def warns(self) -> bool:
        """Whether it is no reason for a job to end."""
        return self.case.fields["symptom"] in ("silent", "slow")

    def mere_warning(self, log: Log) -> bool:
        """Whether it only may be, and only in warnings."""
        if self.level != MAYBE:
            return False
        lines = {hit.first for sign, hit in self.hits if sign.kind != WITH}
        if self.warns:
            return not any(_RAISED.search(log.lines[line]) for line in lines)
        return all(_WARNING.search(log.lines[line]) for line in lines)

    @property
    def key(self) -> tuple:
        """What comes first is likeliest.

        A message counts more than an echo (one that only may be, and would end no job,
        does not), a crash more than the wait of others for it (a wait that has evidence
        of its own is as good), and both more than a warning; then what is earliest, and
        best supported.
        """
        support = sum(sign.kind == WITH for sign, _ in self.hits)
        waits = self.case.fields["symptom"] == "hang" and not support
        group = 2 * self.warns or waits
        level = _LEVELS[self.level]
        best = max(len(n) for sign, _ in self.hits for n in sign.needles)
        place = self.first, -support, -best, self.order
        weak = level + self.warns >= _LEVELS[ECHO]
        return weak, self.warns, level, group, *place


def diagnose(
    log: Log, cases: list[Specimen], ends: dict[int, int] | None = None
) -> list[Suspect]:
    """All cases that a log shows, the likeliest first.

    Args:
        ends: what follows from Ctrl-C, and is no cause: as ``ended`` finds it.
    """
    ends = ended(log) if ends is None else ends
    if foreign(log):
        return []
    counted = _counted(log, cases)
    usable = possible(log, [one for signs in counted for one in signs])
    suspects = []
    for order, (case, signs) in enumerate(zip(cases, counted, strict=True)):
        hits = {}
        for late in False, True:
            for one in signs:
                if (one.kind in _LATE) == late and (hit := find(log, one, usable)):
                    hits[one] = hit
            if not hits:
                break
        else:
            if not any(one.kind == UNLESS for one in hits):
                found = [(one, hits[one]) for one in signs if one in hits]
                suspects.append(Suspect(case, order, found))
    if not suspects and len(log.lines) <= BRIEF:
        for order, (case, signs) in enumerate(zip(cases, counted, strict=True)):
            suspects += _folded(log, case, order, signs, usable)
    return _honest(log, sorted(suspects, key=lambda suspect: suspect.key), ends)


def _counted(log: Log, cases: list[Specimen]) -> list[list[Sign]]:
    """The signs of each case that count in this log; none if its keys do not meet."""
    torch, found = ours(log), []
    for case in cases:
        signs = signs_of(case)
        prefixes = [one.needles[0] for one in signs if one.kind == KEYS]
        met = not prefixes or any(meet(log, prefix) for prefix in prefixes)
        here = (one for one in signs if met and (torch or one.kind != OURS))
        found.append([one for one in here if one.kind != KEYS])
    return found


def _folded(log, case, order, signs, usable) -> list[Suspect]:
    """A title, a question: people write messages without the capitals."""
    full = [one for one in signs if one.kind in (FULL, OURS)]
    hits = [(one, hit) for one in full if (hit := find_folded(log, one))]
    unless = [one for one in signs if one.kind == UNLESS]
    if hits and not any(find(log, one, usable) for one in unless):
        return [Suspect(case, order, hits)]
    return []


def _honest(log: Log, suspects: list[Suspect], ends: dict) -> list[Suspect]:
    """What may be said aloud.

    A ``maybe`` of a case that has ``with`` signs, all of which are missing, is shown
    beside a better one only. What may be is no news if it is a mere warning, unless the
    log is brief. Warnings do not explain an error, nor do echoes one before them. What
    is said after Ctrl-C explains nothing.
    """
    if ends or len(log.lines) > BRIEF:
        suspects = [one for one in suspects if not one.mere_warning(log)]
    suspects = [one for one in suspects if not _over(log, ends, one.first)]
    error = first_error(log)
    error = None if error is not None and _over(log, ends, error) else error
    sure = [one for one in suspects if one.level != ECHO and one.supported]
    if sure:
        lines = {hit.first for one in suspects for _, hit in one.hits}
        quiet = error is None or error in lines
        return suspects if quiet or not all(one.warns for one in sure) else []
    echoes = [one for one in suspects if one.level == ECHO]
    if error is None:
        return echoes
    last = error + REST * ("nccl" in log.lines[error].lower())
    return echoes if any(one.first <= last for one in echoes) else []


def _over(log: Log, ends: dict[int, int], line: int) -> bool:
    """Whether a line was written after somebody ended the job."""
    return line >= ends.get(log.file(line), len(log.lines))


def first_error(log: Log) -> int | None:
    """The first line that looks like an error's and is no warning."""
    found = []
    for word in _ERRORS:
        at = -1
        for _ in range(TRIES):
            at = log.find(word.replace(" ", ""), at + 1)
            line = log.lines[log.line_at(at)] if at >= 0 else ""
            if not _WARNING.search(line) and not _DIGEST.search(line):
                break
        else:
            continue
        found += [log.line_at(at)] * (at >= 0)
    return min(found, default=None)
