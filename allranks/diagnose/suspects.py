"""Decide which failures of the clinic a log shows; none is named without a sign.

A sign is evidence only in a log of torch, only for the keys that it names, and only
before somebody ended the job. book/_static/diagnose.js ranks in the same way.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

from allranks.clinic.cases import ECHO, FULL, KEYS, MAYBE, OURS, UNLESS, WITH
from allranks.clinic.specimens import Specimen
from allranks.diagnose.search import TRIES, Hit, find, find_folded, possible
from allranks.diagnose.signs import Sign, signs_of
from allranks.diagnose.text import Log, bare

SHOWN = 3
BRIEF = 12  # lines; in a paste this short, a warning is what is asked about
REST = 4  # lines in which NCCL continues its report of an error
WARNING = re.compile(r"\[W[\d ]|\bW\d{4} |Warning|WARNING", re.ASCII)
DIGEST = re.compile(r"ChildFailedError: *$")  # torchrun's summary of an earlier error
PROGRESS = re.compile(
    r"\b(?:[Ee]poch|[Ss]tep|[Ii]ter(?:ation)?|loss)\b[ :=/[(]*\d|\d(?:it/s|s/it)\b",
    re.ASCII,
)
RAISED = re.compile(r"(?:Error|Exception): ")
_LATE = WITH, UNLESS  # searched only if another sign of the case is there
_LEVELS = {FULL: 0, MAYBE: 1, ECHO: 2, OURS: 0}
ERRORS = "Error: ", "Exception: ", "error: "
ALONE = "AssertionError", "NotImplementedError", "StopIteration"  # without a message

# As they appear in a log without its spaces. Each names torch, or what is built on it.
TORCH = "torch Torch c10d ProcessGroup DistributedDataParallel FSDP local_rank: [rank0]"
TORCH += " [rank1] [rank2] [rank3] [default0] pt_main_thread pt_data_worker deepspeed"
TORCH += " DeepSpeed ightning egatron accelerate/ acceleratelaunch mmengine mmcv"
OTHERS = "tensorflow XlaRuntimeError jaxlib mxnet MXNet paddle"
INTERRUPTS = "KeyboardInterrupt", "deathsignal", "gotsignal:2", "SIGINT"
INTERRUPT = re.compile(
    r"^KeyboardInterrupt\b|Received (?:2|Signals\.SIGINT) death signal"
    r"|got signal: 2\b|closing signal SIGINT|Signal 2 \(SIGINT\)"
)
TRACEBACK = "Traceback (most recent call last)"
STACK = 200  # lines of a traceback, at most
LISTS = "issingkey(s)instate_dict:", "nexpectedkey(s)instate_dict:"
KEY_LIST = re.compile(rb'(?:"[^"]*",?)*')
KEY = re.compile(rb'"([^"]+)"')


@dataclass
class Suspect:
    """A case, its place among the cases, and the hits of its signs."""

    case: Specimen
    order: int
    hits: list[tuple[Sign, Hit]] = field(default_factory=list)

    @cached_property
    def level(self) -> str:
        """Return the best kind of a sign that matched; a weak hit counts for less."""
        names = list(_LEVELS)
        levels = [
            min(_LEVELS[sign.kind] + (1 if hit.weak else 0), _LEVELS[ECHO])
            for sign, hit in self.hits
            if sign.kind != WITH
        ]
        return names[min(levels)]

    @property
    def first(self) -> int:
        """Return the first line that shows it."""
        return min(hit.first for sign, hit in self.hits if sign.kind != WITH)

    @property
    def supported(self) -> bool:
        """Tell whether a full or ``with`` sign matched, or no ``with`` is needed."""
        kinds = {sign.kind for sign, _ in self.hits}
        sure = {FULL, OURS, WITH} & kinds
        return bool(sure) or WITH not in dict(self.case.signs)

    @property
    def warns(self) -> bool:
        """Tell whether it is a failure that does not end a job."""
        return self.case.fields["symptom"] in ("silent", "slow")

    def mere_warning(self, log: Log) -> bool:
        """Tell whether only ``maybe`` signs match, and only in warnings."""
        if self.level != MAYBE:
            return False
        lines = {hit.first for sign, hit in self.hits if sign.kind != WITH}
        if self.warns:
            return not any(RAISED.search(log.lines[line]) for line in lines)
        return all(WARNING.search(log.lines[line]) for line in lines)

    @property
    def key(self) -> tuple:
        """Return the key for sorting, by which the likeliest case comes first.

        A message counts more than an echo, unless it only may point to a case that ends
        no job. A crash counts more than the wait of other ranks for it, unless the wait
        has evidence of its own. Both count more than a warning. After that comes what
        is earliest, and what has most support.
        """
        support = sum(1 for sign, _ in self.hits if sign.kind == WITH)
        waits = self.case.fields["symptom"] == "hang" and not support
        group = 2 if self.warns else 1 if waits else 0
        level = _LEVELS[self.level]
        best = max(len(n) for sign, _ in self.hits for n in sign.needles)
        place = self.first, -support, -best, self.order
        weak = (level + 1 if self.warns else level) >= _LEVELS[ECHO]
        return weak, self.warns, level, group, *place


def diagnose(
    log: Log, cases: list[Specimen], ends: dict[int, int] | None = None
) -> list[Suspect]:
    """Return all cases that a log shows, the likeliest first.

    Args:
        log: what to diagnose.
        cases: of the clinic.
        ends: where each log was ended by Ctrl-C, as ``ended`` finds it; what follows is
            no cause.
    """
    ends = ended(log) if ends is None else ends
    if foreign(log):
        return []
    counted = _counted(log, cases)
    usable = possible(
        log, [s for signs in counted for one in signs for s in (one, *one.also)]
    )
    suspects = []
    for order, (case, signs) in enumerate(zip(cases, counted, strict=True)):
        hits = {}
        # Most cases have no hit at all, so what only supports or rules out comes later.
        for late in False, True:
            for one in signs:
                if (one.kind in _LATE) == late and (hit := _whole(log, one, usable)):
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


def _whole(log: Log, one: Sign, usable: set[Sign]) -> Hit | None:
    """Return where a sign matches, if other lines say what it needs beside it."""
    hit = find(log, one, usable)
    return hit if hit and _beside(log, one, usable) else None


def _beside(log: Log, one: Sign, usable: set[Sign]) -> bool:
    """Tell whether a log has what a sign needs beside its own line."""
    return all(find(log, other, usable) for other in one.also)


def _counted(log: Log, cases: list[Specimen]) -> list[list[Sign]]:
    """Return the signs of each case that count in this log.

    Signs of ``OURS`` count if the log is of torch. No sign of a case counts if its
    ``KEYS`` are given, but missing and unexpected keys do not meet.
    """
    torch, found = ours(log), []
    for case in cases:
        signs = signs_of(case)
        prefixes = [one.needles[0] for one in signs if one.kind == KEYS]
        met = not prefixes or any(meet(log, prefix) for prefix in prefixes)
        here = (one for one in signs if met and (torch or one.kind != OURS))
        found.append([one for one in here if one.kind != KEYS])
    return found


def _folded(
    log: Log, case: Specimen, order: int, signs: list[Sign], usable: set[Sign]
) -> list[Suspect]:
    """Look for a case in any capitals, as people write titles and questions."""
    full = [one for one in signs if one.kind in (FULL, OURS)]
    hits = [
        (one, hit)
        for one in full
        if (hit := find_folded(log, one)) and _beside(log, one, usable)
    ]
    unless = [one for one in signs if one.kind == UNLESS]
    if hits and not any(find(log, one, usable) for one in unless):
        return [Suspect(case, order, hits)]
    return []


def _honest(log: Log, suspects: list[Suspect], ends: dict) -> list[Suspect]:
    """Return the suspects that there is enough evidence to name.

    If a case has ``with`` signs and all of them are missing, its ``maybe`` is shown
    only beside a better suspect. A warning that only may point to a case is not shown,
    unless the log is short and no training goes on in it. Warnings do not explain an
    error, echoes do not explain an error before them, nobody needs them beside what
    they certainly echo, and a training that goes on after one did not end by it. What
    comes after Ctrl-C explains nothing.
    """
    if ends or len(log.lines) > BRIEF or any(map(PROGRESS.search, log.lines)):
        suspects = [one for one in suspects if not one.mere_warning(log)]
    suspects = [one for one in suspects if not _over(log, ends, one.first)]
    if any(one.level == ECHO for one in suspects):
        # A rank may print once more after another one has died; twice, and it goes on.
        goes_on = [i for i, x in enumerate(log.lines) if PROGRESS.search(x)]
        last = goes_on[-2] if len(goes_on) > 1 else -1
        suspects = [one for one in suspects if one.level != ECHO or one.first >= last]
    error = first_error(log)
    error = None if error is not None and _over(log, ends, error) else error
    sure = [one for one in suspects if one.level != ECHO and one.supported]
    if sure:
        lines = {hit.first for one in suspects for _, hit in one.hits}
        quiet = error is None or error in lines
        explained = quiet or not all(one.warns for one in sure)
        known = any(_LEVELS[one.level] == 0 and not one.warns for one in sure)
        shown = [one for one in suspects if not (known and one.level == ECHO)]
        return shown if explained else []
    echoes = [one for one in suspects if one.level == ECHO]
    if error is None:
        return echoes
    last = error + REST if "nccl" in log.lines[error].lower() else error
    return echoes if any(one.first <= last for one in echoes) else []


def _over(log: Log, ends: dict[int, int], line: int) -> bool:
    """Tell whether a line was written after somebody ended the job."""
    return line >= ends.get(log.file(line), len(log.lines))


def first_error(log: Log) -> int | None:
    """Return the first line that looks like an error and is no warning, or None."""
    found = (_first_with(log, word) for word in ERRORS + ALONE)
    return min((line for line in found if line is not None), default=None)


def _first_with(log: Log, word: str) -> int | None:
    """Return the first line with a word that is no warning and no summary, or None."""
    at = -1
    for _ in range(TRIES):
        at = log.find(word.replace(" ", ""), at + 1)
        if at < 0:
            return None
        line = log.line_at(at)
        text = log.lines[line]
        if word in ALONE and bare(text) != word:
            continue
        if not WARNING.search(text) and not DIGEST.search(text):
            return line
    return None


def ours(log: Log) -> bool:
    """Tell whether a log is of torch; any program may be killed, for example."""
    return any(log.find(word) >= 0 for word in TORCH.split())


def foreign(log: Log) -> bool:
    """Tell whether a log is of another library, which may use NCCL too."""
    return any(log.find(word) >= 0 for word in OTHERS.split()) and not ours(log)


def meet(log: Log, prefix: str) -> bool:
    """Tell whether missing keys are unexpected ones with, or without, a prefix.

    True if the log shows only one of the two lists, so that they cannot be compared.
    """
    missing, unexpected = (_keys(log, word) for word in LISTS)
    if not missing or not unexpected:
        return True
    cut = prefix.encode()
    return any(
        key.replace(cut, b"") in other
        for keys, other in ((missing, unexpected), (unexpected, missing))
        for key in keys
        if cut in key
    )


def _keys(log: Log, word: str) -> set[bytes]:
    """Return the keys that follow a word."""
    found, at = set(), -1
    for _ in range(TRIES):
        if (at := log.find(word, at + 1)) < 0:
            break
        found.update(KEY.findall(KEY_LIST.match(log.squeezed, at + len(word))[0]))
    return found


def ended(log: Log) -> dict[int, int]:
    """Find where somebody ended the job: the line, by the number of each such log."""
    found = {}
    for word in INTERRUPTS:
        at = -1
        for _ in range(TRIES):
            if (at := log.find(word, at + 1)) < 0:
                break
            line = log.line_at(at)
            if INTERRUPT.search(bare(log.lines[line])):
                file = log.file(line)
                begin = max(log.begins[file], line - STACK)
                stack = range(line, begin - 1, -1)
                heads = (i for i in stack if TRACEBACK in log.lines[i])
                line = next(heads, line)
                found[file] = min(line, found.get(file, line))
    return found
