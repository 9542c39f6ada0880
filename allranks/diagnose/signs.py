r"""Signs: regular expressions that mean the same in Python and in a reader's browser.

Each contains a literal piece, which is searched first, in the whole log and without
spaces, so that a message is found even if a terminal has broken its line. Only around
such a place is the expression tried. What a browser would read differently is refused.
"""

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from allranks.clinic.cases import AND, WITH
from allranks.clinic.specimens import Specimen

DIGITS = b"0123456789"
SHORTEST = 6  # letters of the literal piece
CUT = 16  # letters of a piece that suffice at the log's end, if half of the piece
SPACE = re.compile(r"(?:\\s| )[+*?]?|\\(.)")  # or a letter with a backslash
_ATOM = re.compile(
    r"""
    (?P<open>\((?:\?[:=!])?) | (?P<close>\)) | (?P<bar>\|)
  | (?P<space>(?:\\s|[ ])[+*?]?(?![+*?{]))
  | (?P<set>\[\^?(?:[^\\\[\]]|\\[^A-Za-z0-9]|\\[dswDSW])+\])
  | (?P<kind>\\[dswDSWbB]|[.^$])
  | (?P<literal>\\[^A-Za-z0-9\s]|[^\\()\[{|.^$*+?])
    """,
    re.VERBOSE,
)
_TIMES = re.compile(r"(?:([*+?])|\{(\d+)(?:,\d*)?\})\??(?![*+?{])")


@dataclass(frozen=True, eq=False)
class Sign:
    """A sign of one case.

    Attributes:
        kind: full, maybe, echo, with or unless.
        pattern: the regular expression.
        spans: literal pieces of the pattern as (begin, end); a match contains at least
            one of them.
        also: what other lines of the log must say, for the sign to count.
    """

    kind: str
    pattern: str
    spans: tuple[tuple[int, int], ...]
    also: tuple["Sign", ...] = ()

    @property
    def alone(self) -> bool:
        """Tell whether it counts only as the one line of a log, such as a question."""
        ends = self.pattern[:1] + self.pattern[-1:]
        return self.kind == WITH and ends == "^$"

    # Every log needs every expression, and the cache of re holds only 512.
    @cached_property
    def expression(self) -> re.Pattern:
        """Return the compiled pattern."""
        return re.compile(self.pattern, re.ASCII)

    @cached_property
    def needles(self) -> list[str]:
        """Return the literal text of each piece, without spaces."""
        return [literal(self.pattern[begin:end]) for begin, end in self.spans]

    @cached_property
    def heads(self) -> list[bytes]:
        """Return the first letters of each piece, which a log cut within it has."""
        return [needle[:CUT].encode() for needle in self.needles]

    @cached_property
    def words(self) -> list[list[bytes]]:
        """Return the words of each piece, without digits."""
        pieces = [literal(self.pattern[begin:end], " ") for begin, end in self.spans]
        return [piece.encode().translate(None, DIGITS).split() for piece in pieces]


def literal(source: str, space: str = "") -> str:
    r"""Return a literal piece of a pattern as text, and each white space as ``space``.

    >>> literal(r"op\.preamble\s+<= op")
    'op.preamble<=op'
    """
    return SPACE.sub(lambda match: match[1] or space, source)


@cache
def sign(kind: str, pattern: str) -> Sign:
    """Check a pattern and find its literal pieces.

    Args:
        kind: one of ``KINDS``.
        pattern: a regular expression, or several, joined by `` && ``: the first shows
            the case, if other lines match the rest.
    Raises:
        ValueError: if a browser would read it differently, or no piece of it is long
            enough.

    >>> sign("full", r"[Rr]ank \\d+ (?:is gone|has left)").needles
    ['isgone', 'hasleft']
    """
    pattern, *others = pattern.split(AND)
    also = tuple(sign(WITH, other) for other in others)
    if not pattern.isascii():
        raise ValueError(f"the sign {pattern!r} holds a letter that is not ASCII")
    # First by our own rules, which are those that Python and browsers share; what
    # passes may still be no expression.
    spans, end = _choice(pattern, 0)
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ValueError(f"the sign {pattern!r} is no expression: {error}") from None
    if end < len(pattern):
        raise ValueError(f"the sign {pattern!r} has a ) without a (")
    spans = spans or []
    if min((_length(pattern, s) for s in spans), default=0) < SHORTEST:
        raise ValueError(
            f"the sign {pattern!r} needs {SHORTEST} literal characters in a row"
        )
    return Sign(kind, pattern, tuple(dict.fromkeys(spans)), also)


def _length(pattern: str, span: tuple[int, int]) -> int:
    """Count the letters of a piece, and each white space as one."""
    return len(re.sub(r"\\(.)|.[+*?]", "x", pattern[slice(*span)].replace(r"\s", " ")))


def _choice(pattern: str, at: int) -> tuple[list | None, int]:
    """Return pieces of which one must occur, from alternatives up to a ) or the end."""
    found, sure = [], True
    while True:
        spans, at = _row(pattern, at)
        sure = sure and spans is not None
        found += spans or []
        if pattern[at : at + 1] != "|":
            return (found if sure else None), at
        at += 1


def _row(pattern: str, at: int) -> tuple[list | None, int]:
    """Return the best pieces of one alternative: those whose shortest is longest."""
    options, begin = [], at
    while at < len(pattern) and pattern[at] not in "|)":
        match = _ATOM.match(pattern, at)
        if not match:
            raise ValueError(
                f"the sign {pattern!r} has {pattern[at : at + 3]!r}, which Python and "
                "browsers do not both know, or read differently"
            )
        inner, end = None, match.end()
        if match["open"]:
            inner, end = _choice(pattern, end)
            end += 1
        times = _TIMES.match(pattern, end)
        if not (match["literal"] or match["space"]) or times:
            options.append([(begin, at)])
            must = not times or (times[1] == "+" or int(times[2] or 0) > 0)
            if inner and must and match["open"] in ("(", "(?:"):
                options.append(inner)
            begin = times.end() if times else end
        at = times.end() if times else end
    options.append([(begin, at)])
    best = max(options, key=lambda o: min(_length(pattern, s) for s in o))
    return (best if all(a < b for a, b in best) else None), at


def signs_of(case: Specimen) -> list[Sign]:
    """Return the signs of a case, checked.

    Raises:
        ValueError: if one cannot be used; the message names the file.
    """
    try:
        return _checked(case.signs)
    except ValueError as error:
        raise ValueError(f"{case.path.name}: {error}") from None


@cache
def _checked(signs: tuple[tuple[str, str], ...]) -> list[Sign]:
    return [sign(kind, pattern) for kind, pattern in signs]


def for_browsers(scope: dict[str, Any], names: str) -> dict[str, Any]:
    r"""Return constants of a module as JSON can have them: expressions as their text.

    >>> for_browsers({"DIGIT": re.compile(r"\d"), "FEW": 9}, "DIGIT FEW")
    {'DIGIT': {'pattern': '\\d'}, 'FEW': 9}
    """
    return {name: _plain(scope[name]) for name in names.split()}


def _plain(value: Any) -> Any:
    """Return a constant without compiled expressions, which no JSON can hold."""
    match value:
        case re.Pattern(pattern=bytes(text)):
            return {"pattern": text.decode()}
        case re.Pattern(pattern=text):
            return {"pattern": text}
        case [*items]:  # lists and tuples
            return [_plain(item) for item in items]
    return value
