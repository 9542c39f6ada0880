"""Find where the signs of the clinic's cases match in a log.

A sign's literal piece is searched in the whole log, and the expression is tried only
around it: on the line, on the line without its prefixes, and on the line joined with
its neighbors, in case a terminal has broken it. book/_static/diagnose.js does so too.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product

from allranks.clinic.cases import UNLESS, WITH
from allranks.diagnose.signs import CUT, DIGITS, Sign
from allranks.diagnose.text import Log, bare

TRIES = 300  # places to try for one piece of a sign
SOURCE = re.compile(
    r"^ *(?:-+> *)?(?:\d+ +)?(?:raise |assert |if |elif |return |f?\"|f?'|#|r\"|msg = )"
)
TYPED = re.compile(r"^ *(?:\+{1,5} |\$ |(?:echo|printf) )")  # what a shell repeats
BARRIER = re.compile(r"world_size=(\d{1,9}), worker_count=(\d{1,9})\b", re.ASCII)
MANY = 2**16  # words to keep at a time
NEXT = re.compile(r"^ *(?:Traceback|File \"|\[rank\d|\[default\d)")


@dataclass(frozen=True)
class Hit:
    """A place where a sign matches.

    Attributes:
        first, last: the lines of the log.
        text: these lines, joined.
        begin, end: the match in this text.
        weak: whether it is a line of code, or a message that is cut or in other
            capitals.
    """

    first: int
    last: int
    text: str
    begin: int
    end: int
    weak: bool


def possible(log: Log, signs: list[Sign]) -> set[Sign]:
    """Return the signs that can match.

    All words of one of their pieces are there, or a piece is cut at the log's end.
    """
    missing = {word for one in signs for piece in one.words for word in piece}
    seen = set()
    for words in _vocabulary(log):
        new = {word for word in missing if word in words}
        seen, missing = seen | new, missing - new
    return {
        one
        for one in signs
        if any(seen.issuperset(piece) for piece in one.words)
        or any(head in log.tail for head in one.heads)
    }


def _vocabulary(log: Log) -> Iterator[bytes]:
    """Yield the words of a log, also those that a line's end cuts, in long pieces."""
    words = set()
    for part in log.lines.pieces():
        lines = [line.strip() for line in part.translate(None, DIGITS).split(b"\n")]
        for head, rest in pairwise(lines):
            words.add(head.rpartition(b" ")[2] + rest.partition(b" ")[0])
        words.update(b"\n".join({*lines}).split())
        if len(words) > MANY:
            yield b"\n".join(words)
            words.clear()
    yield b"\n".join(words)


def find(log: Log, one: Sign, usable: set[Sign]) -> Hit | None:
    """Return the earliest place of a sign, and a message rather than a line of code.

    Args:
        log: where to look.
        one: the sign.
        usable: the signs that are ``possible``.
    """
    if one not in usable or (one.alone and not log.alone):
        return None
    found, code = [], []
    for needle in one.needles:
        at, last = log.find(needle), -1
        for _ in range(TRIES):
            if at < 0:
                break
            line = log.line_at(at)
            end = log.line_at(at + len(needle) - 1)
            if (line, end) != last:  # a line has a piece often, and matches or not
                last = line, end
                hit = _try(log, one.expression, line, end)
                if hit and one.kind != UNLESS and _complete(hit.text):
                    hit = None
                if hit and not hit.weak:
                    found.append(hit)
                    break
                if hit:
                    code.append(hit)
            at = log.find(needle, at + 1)
    hits = found or code
    # A log that was cut may end within the message. What only supports a sign, or rules
    # it out, must be there in full.
    if not hits and one.kind not in (WITH, UNLESS):
        for needle, head in zip(one.needles, one.heads, strict=True):
            if head in log.tail and (hit := _cut(log, needle)):
                hits.append(hit)
    return min(hits, key=lambda hit: hit.first, default=None)


def _complete(text: str) -> bool:
    """Tell whether it is a store's barrier at which no rank is missing."""
    match = BARRIER.search(text)
    return match is not None and int(match[2]) >= int(match[1])


def find_folded(log: Log, one: Sign) -> Hit | None:
    """Return the first place of a sign with a long piece, in any capitals."""
    for needle in one.needles:
        at = log.folded.find(needle.lower().encode()) if len(needle) >= CUT else -1
        if at >= 0:
            expression = re.compile(one.pattern, re.ASCII | re.IGNORECASE)
            ends = log.line_at(at), log.line_at(at + len(needle) - 1)
            hit = _try(log, expression, *ends)
            if hit and not _complete(hit.text):
                return replace(hit, weak=True)
    return None


def _cut(log: Log, needle: str) -> Hit | None:
    """Return the place where the log ends within a piece, if it does."""
    for size in range(len(needle) - 1, max(CUT, len(needle) // 2) - 1, -1):
        if log.tail.endswith(needle[:size].encode()):
            line = log.line_at(len(log.squeezed) - 1)
            return Hit(line, line, log.lines[line], 0, len(log.lines[line]), True)
    return None


def _try(log: Log, expression: re.Pattern, line: int, end: int) -> Hit | None:
    """Match on the lines from ``line`` to ``end``, and on their neighbors too."""
    if line == end:
        if TYPED.search(bare(log.lines[line])):
            return None
        for text in (log.lines[line], bare(log.lines[line])):
            if match := expression.search(text):
                source = bool(SOURCE.search(bare(log.lines[line])))
                return Hit(line, line, text, *match.span(), source)
    for before, after in (0, 0), (0, 1), (1, 0), (1, 1), (0, 2):
        inside = range(line - before, end + after)
        if not 0 < len(inside) <= 3 or not all(map(log.goes_on, inside)):
            continue
        head, *rest = (log.lines[i].strip(" ") for i in (*inside, inside.stop))
        if any(map(NEXT.search, rest)) or TYPED.search(bare(head)):
            continue
        for joints in product((" ", ""), repeat=len(rest)):
            text = head + "".join(chain(*zip(joints, rest, strict=True)))
            if match := expression.search(text):
                source = bool(SOURCE.search(bare(head)))
                return Hit(inside.start, inside.stop, text, *match.span(), source)
    return None
