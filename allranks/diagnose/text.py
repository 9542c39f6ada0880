"""A log as people have it, made plain: its lines, and what they begin with.

Decoration is removed: colors, entities, typographic quotes, frames. What is left is
kept in little more memory than its file takes. book/_static/diagnose.js takes the same
steps with the same expressions, so a new step belongs in both.
"""

import re
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

BLOCK = 2**18  # letters, or bytes, that are processed at a time
CHUNK = 4000  # letters; a longer line is cut, so that an expression ends in time
FEW = 9  # lines, most of them blank, of a message without its log
DOTS = ".`*\u2026"  # at the end of a log, they show where it was cut
NARROW, WIDE = 40, 250  # letters of a line that a terminal or mail may have broken
_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?"
PREFIX = re.compile(
    rf"^(?: *(?:\[(?:rank|default|worker|Rank )?\d+\]:?|\[\d+,\d+\]<std(?:out|err)>:?"
    rf"|\d{{1,5}}:(?= )|[\w.-]{{1,80}} +\||\[pod/[^\]]{{1,200}}\]|{_STAMP}|\[{_STAMP}\]"
    rf"|\[?\d\d:\d\d:\d\d[.,\d]*\]?|std(?:out|err) [FP]"
    rf"|\(\w{{1,80}} pid=\d+[^)]{{0,80}}\)"
    rf"|\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?:?(?= )|[-|](?= )))* *",
    re.ASCII,
)
RANKS = [
    re.compile(r"\[(?:rank|default)(\d{1,6})\]"),
    re.compile(r"^ *\[(\d{1,6})\]:"),
    re.compile(r"^ *\[\d+,(\d{1,6})\]<std"),
    re.compile(r"\[Rank (\d{1,6})\]|\bRank (\d{1,6})\]", re.ASCII),
]
SRUN = re.compile(r"^ *(\d{1,5}): ")
PLAIN = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b\u00b4\u2032", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u00a0\u1680\u202f\u205f\u3000\u2028\u2029\x85", " "),
    **{chr(code): " " for code in range(0x2000, 0x200B)},
    "\uff0c": ",",
    "\uff1a": ":",
}
ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'", "nbsp": " "}
ENTITIES |= {"#39": "'", "#x27": "'", "#34": '"', "#x22": '"', "#96": "`", "#x60": "`"}
ESCAPES = {"n": "\r", "t": " ", '"': '"', "\\": "\\"}
ESCAPED = re.compile(
    r'\\n +File \\*"|\\n(?:Traceback|\[rank\d|\w*(?:Error|Exception): )', re.ASCII
)
ESCAPE = re.compile(r'\\(["\\nt])')
CONTROLS = "\t\x0b\x0c\x1c\x1d\x1e\x1f"
ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z=>])"
)
COLOUR = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")  # a color whose first byte was lost
ENTITY = re.compile(rf"&({'|'.join(ENTITIES)});")
ODD = re.compile(f"[{''.join(PLAIN)}\ud800-\udfff\U00010000-\U0010ffff]")
DASH = re.compile(r"[\u2013\u2014](?=[a-z])")
_BEGIN, _END = r"(?<![^\n\r])", r"(?![^\n\r])"
QUOTE = re.compile(rf"{_BEGIN} *(?:> ?)+")
_BAR = "[\u2502\u2503\u2551]"
FRAME = re.compile(rf"{_BEGIN} *{_BAR} ?|{_BAR} *{_END}")


class Lines(Sequence):
    """Lines of text, kept as one piece of UTF-8: strings would take too much."""

    def __init__(self) -> None:
        self.data, self.ends = bytearray(), array("Q")

    def extend(self, lines: list[str]) -> None:
        """Add lines at the end."""
        sizes = (len(line if line.isascii() else line.encode()) + 1 for line in lines)
        self.ends.extend(accumulate(sizes, initial=len(self.data)))
        self.ends.pop()  # the last line ends where data does
        self.data += "\n".join([*lines, ""]).encode()

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        last = index + 1 == len(self)
        end = len(self.data) if last else self.ends[index + 1]
        return self.data[self.ends[index] : end - 1].decode()

    def pieces(self) -> Iterator[bytes]:
        """Yield parts of whole lines; the last line of a part also begins the next."""
        begin = 0
        while begin < len(self.data):
            end = self.data.find(b"\n", begin + BLOCK) + 1 or len(self.data)
            yield bytes(self.data[begin:end])
            last = self.data.rfind(b"\n", begin, end - 1) + 1
            begin = end if end == len(self.data) else max(last, begin + 1)


def blocks(parts: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Split a text of any size into blocks of whole lines.

    Yields:
        The lines, without the end of the last one, and whether a line ends there. A
        line longer than a block is cut, if possible at a carriage return.
    """
    rest = ""
    for part in parts:
        for at in range(0, max(1, len(part)), BLOCK):
            rest += part[at : at + BLOCK]
            while len(rest) >= BLOCK:
                if (end := rest.rfind("\n")) >= 0:
                    yield rest[:end].removesuffix("\r"), True
                    rest = rest[end + 1 :]
                elif (end := rest.rfind("\r", 0, -1)) >= 0:
                    yield rest[:end], False
                    rest = rest[end + 1 :]
                else:
                    end = BLOCK // CHUNK * CHUNK
                    yield rest[:end], False
                    rest = rest[end:]
    yield rest, True


class Log:
    """The plain lines of one or several logs.

    Args:
        logs: the name and the text of each, or its text in parts.
    Attributes:
        lines: the text of each line; a carriage return ends one, too.
        squeezed: all lines without spaces and line ends, as UTF-8.
        tail: the end of ``squeezed``, without the dots that show where a log was cut.
        starts: where in ``squeezed`` each line begins.
        continued: the lines that begin within a line of the log.
        names, begins: the name of each log, and its first line.
    """

    def __init__(self, *logs: tuple[str, str | Iterable[str]]) -> None:
        self.lines, self.squeezed, self.starts = Lines(), bytearray(), array("Q")
        self.continued = array("Q")
        self.names, self.begins = [], []
        for name, parts in logs:
            self.names.append(name)
            self.begins.append(len(self.lines))
            within = False
            for text, ends in blocks([parts] if isinstance(parts, str) else parts):
                self._add(text, within)
                within = not ends
        end = self.squeezed[-2 * CHUNK :].decode(errors="ignore")
        self.tail = end.rstrip(DOTS).encode()

    def _add(self, text: str, within: bool) -> None:
        """Add lines; the first may continue the line before."""
        lines = plain(text).split("\n")
        if "\r" in text or "\\n" in text or max(map(len, lines)) > CHUNK:
            rows, first = [], len(self.lines)
            for line in lines:
                whole = len(rows)
                for part in line.split("\r"):
                    sizes = range(0, max(1, len(part)), CHUNK)
                    rows += [part[at : at + CHUNK] for at in sizes]
                self.continued.extend(range(first + whole + 1, first + len(rows)))
            lines = rows
        if within:
            insort(self.continued, len(self.lines))
        self.lines.extend(lines)
        tight = "\n".join(lines).replace(" ", "").encode()
        sizes = accumulate(map(len, tight.split(b"\n")), initial=len(self.squeezed))
        self.starts.extend(sizes)
        self.starts.pop()
        self.squeezed += tight.replace(b"\n", b"")

    def file(self, index: int) -> int:
        """Return which of the logs holds a line, counted from 0."""
        return bisect_right(self.begins, index) - 1

    def place(self, index: int) -> tuple[str, int]:
        """Return the name of the log that holds a line, and the line's number there."""
        file = self.file(index)
        begin = self.begins[file]
        parts = bisect_right(self.continued, index) - bisect_left(self.continued, begin)
        return self.names[file], index - begin - parts + 1

    def after(self, file: int, count: int) -> int:
        """Return the line after the first ``count`` lines of a log."""
        ends = [*self.begins[1:], len(self.lines)]
        rows = range(self.begins[file], ends[file])
        return rows.start + bisect_right(rows, count, key=lambda i: self.place(i)[1])

    @cached_property
    def alone(self) -> bool:
        """Tell whether it is one line only, without the rest of a job's output."""
        full = [line for line in self.lines[: FEW + 1] if line.strip(" ")]
        return len(self.lines) <= FEW and len(full) == 1

    @cached_property
    def folded(self) -> bytes:
        """Return ``squeezed`` in small letters."""
        return bytes(self.squeezed).lower()

    def find(self, needle: str, begin: int = 0) -> int:
        """Return where ``squeezed`` has a text without spaces, or -1."""
        return self.squeezed.find(needle.encode(), begin)

    def line_at(self, offset: int) -> int:
        """Return the line that holds this byte of ``squeezed``."""
        return bisect_right(self.starts, offset) - 1

    def goes_on(self, index: int) -> bool:
        """Tell whether the next line may be the rest of this one."""
        if not 0 <= index < len(self.lines) - 1:
            return False
        size = len(self.lines[index])
        return NARROW <= size <= WIDE or size == CHUNK

    def rank(self, index: int) -> str:
        """Return the rank that a line names, or an empty string."""
        line = self.lines[index]
        for pattern in RANKS:
            if match := pattern.search(line):
                return match[1] or match[2]
        near = [
            self.lines[i] for i in (index - 1, index + 1) if 0 <= i < len(self.lines)
        ]
        match = SRUN.search(line)
        if match and (not near or any(map(SRUN.search, near))):
            return match[1]
        return ""


def plain(text: str) -> str:
    """Remove decoration: colors, entities, typographic quotes, frames.

    >>> plain("\\x1b[31m> \\u2018RANK\\u2019 &gt; 1\\x1b[0m")
    "'RANK' > 1"
    """
    text = text.replace("\r\n", "\n")
    for control in CONTROLS:
        text = text.replace(control, " ")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = COLOUR.sub("", text)
    if "&" in text:
        text = ENTITY.sub(lambda match: ENTITIES[match[1]], text)
    if not text.isascii():
        text = ODD.sub(lambda match: PLAIN.get(match[0], "\ufffd"), text)
    lines = text.split("\n")
    for i, line in enumerate(lines):  # the few that are framed or quoted
        if not line.isascii():
            line = FRAME.sub("", DASH.sub("--", line))
        line = QUOTE.sub("", line) if ">" in line else line
        lines[i] = unescaped(line) if "\\n" in line else line
    return "\n".join(lines)


def unescaped(line: str) -> str:
    r"""Return the lines that JSON has in one line, each ended by a carriage return.

    >>> unescaped(r'{"py": "\\n  File \\"x\\"\\nOSError: gone"}').split("\r")[1:]
    ['  File "x"', 'OSError: gone"}']
    """
    for _ in range(3):  # JSON in JSON
        if not ESCAPED.search(line):
            break
        line = ESCAPE.sub(lambda match: ESCAPES[match[1]], line)
    return line


def bare(line: str) -> str:
    """Return a line without the prefixes of launchers, clusters and loggers.

    >>> bare("2024-05-01 10:00:00,123 [rank1]: RuntimeError: gone ")
    'RuntimeError: gone'
    """
    return line[PREFIX.match(line).end() :].rstrip(" ")
