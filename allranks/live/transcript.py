"""What one rank printed and displayed in one cell, in order."""

import dataclasses
import re
from typing import Any, NamedTuple

KEPT = 1 << 20  # bytes at each end of a longer output; those between are counted

# What moves the cursor of a terminal: carriage return, up, erase the line, backspace.
MOVES = re.compile(r"(\r|\n|\x08|\x1b\[\d*[AK])")


# [rank0]:[W1127 15:24:11.123456789 reducer.cpp:1457] Warning: ...
GLOG = re.compile(
    r"^(?:\[rank\d+\]:)?\[([IWEF])\d{4} [\d:.]+ (?:\d+ )?([\w.]+:\d+)\] ", re.MULTILINE
)
NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected to")
NOTE = re.compile(
    r"\n.*\(\.\.\. (?:([\d,]+) lines, )?([\d,]+) characters left out here \.\.\.\)\n"
)


@dataclasses.dataclass
class Display:
    """Something that a rank displayed.

    Attributes:
        data: its representations by MIME type.
        metadata: for a front end, by MIME type.
        display_id: by which the rank updates it; None if it cannot.
    """

    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None = None


class Tail(NamedTuple):
    """The last lines of a transcript.

    Attributes:
        before: number of lines that come before them.
        lines: their text.
        whole: whether the last one is complete.
    """

    before: int
    lines: list[str]
    whole: bool

    @property
    def end(self) -> int:
        """Return the number of lines in all."""
        return self.before + len(self.lines)

    def line(self, number: int) -> str | None:
        """Return a line by its number in the whole; None if it isn't here."""
        at = number - self.before
        return self.lines[at] if 0 <= at < len(self.lines) else None


class Transcript:
    """Collect a rank's text, and what it displays, while a cell runs.

    Args:
        start: the rank's output in bytes before the cell.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._data = bytearray()
        self._cut = self._cut_lines = 0  # left out after the first KEPT bytes
        self._displays: list[tuple[int, Display]] = []  # with the place in _data
        self.changed = False  # since someone last looked
        self.native = ""  # what code below Python has written to stderr

    @property
    def end(self) -> int:
        """Return how many bytes the rank has printed so far, in all cells."""
        return self._start + len(self._data) + self._cut

    def add(self, data: bytes) -> None:
        """Append what the rank printed."""
        if not data:
            return
        self.changed = True
        self._data += data
        if (too_many := len(self._data) - 2 * KEPT) > 0:
            self._cut_lines += self._data.count(b"\n", KEPT, KEPT + too_many)
            del self._data[KEPT : KEPT + too_many]
            self._cut += too_many

    def message(self, message: tuple) -> None:
        """Append what the rank displayed, or take everything back.

        Args:
            message: ``("display", place, data, metadata, display_id, update)`` or
                ``("clear", place)``; a place counts the bytes printed before it.
        """
        self.changed = True
        kind, place, *rest = message
        at = place - self._start
        at -= self._cut if at > KEPT else 0
        if kind == "clear":
            self._displays.clear()
            self._start, self._cut, self._cut_lines = place, 0, 0
            del self._data[:at]
            return
        data, metadata, display_id, update = rest
        if update:
            old = [d for _, d in self._displays if d.display_id == display_id]
            for display in old:
                display.data, display.metadata = data, metadata
            if old:
                return
        self._displays.append((at, Display(data, metadata, display_id)))

    def text(self) -> str:
        """Return all text as it was printed, with a note where some is left out."""
        return self._slice(0, len(self._data))

    def parts(self) -> list[str | Display]:
        """Return text and displays in turn: text first and last, possibly empty."""
        parts, begin = [], 0
        for at, display in self._displays:
            parts += [settle(self._slice(begin, at)), display]
            begin = at
        return [*parts, settle(self._slice(begin, len(self._data)))]

    def tail(self, most: int) -> Tail:
        """Return the last lines as they stand now.

        Args:
            most: number of lines to return.
        """
        data, before = self._data, 0
        if len(data) > (size := 200 * most):
            begin = data.rfind(b"\n", 0, len(data) - size) + 1
            before, data = data.count(b"\n", 0, begin), data[begin:]
        whole = data.endswith(b"\n")
        lines = settle(data.decode("utf8", "replace")).splitlines()
        skipped = max(0, len(lines) - most)
        lines = [line[:500] for line in lines[skipped:]]
        return Tail(before + skipped, lines, whole)

    def _slice(self, begin: int, end: int) -> str:
        if not (self._cut and begin <= KEPT < end):
            return self._data[begin:end].decode("utf8", "replace")
        head, tail = self._data[begin:KEPT], self._data[KEPT:end]
        note = left_out(self._cut_lines, self._cut)
        return head.decode("utf8", "replace") + note + tail.decode("utf8", "replace")


def without_noise(text: str) -> str:
    """Return what native code wrote without what says nothing, and without times.

    The time in the head of a message differs from rank to rank, and so would the lines
    that are equal otherwise.
    """
    text = GLOG.sub(r"[\1 \2] ", text)
    return "".join(line for line in text.splitlines(True) if not NOISE.match(line))


def left_out(lines: int, characters: int) -> str:
    """Return the note that stands for what is left out."""
    what = f"{lines:,} lines, " if lines else ""
    return f"\n(... {what}{characters:,} characters left out here ...)\n"


def shortened(text: str, most: int) -> str:
    """Leave out the middle of a text that is too long, in whole lines if there are any.

    Args:
        text: may have notes of its own, whose counts go into the new one.
        most: number of characters to keep.
    """
    if len(text) <= most:
        return text
    begin, end = most // 2, len(text) - most // 2
    begin = text.rfind("\n", 0, begin) + 1 or begin
    end = text.find("\n", end, -1) + 1 or end
    middle = text[begin:end]
    lines, characters = middle.count("\n"), len(middle)
    for note in NOTE.finditer(middle):
        lines += int((note[1] or "0").replace(",", "")) - 2
        characters += int(note[2].replace(",", "")) - len(note[0])
    return text[:begin].removesuffix("\n") + left_out(lines, characters) + text[end:]


def settle(text: str) -> str:
    r"""Return what a terminal shows after a text that redraws its lines.

    >>> settle("10%\r20%\rdone\n")
    'done\n'
    >>> settle("outer\n inner\x1b[A\rOUTER\n\n")
    'OUTER\n inner\n'
    """
    if "\r" not in text and "\b" not in text and "\x1b[" not in text:
        return text
    # The cursor moves over a page of lines, as on a terminal: what comes after a
    # carriage return or a move upward replaces what stands there, letter by letter.
    lines, row, column = [""], 0, 0
    for piece in MOVES.split(text.replace("\r\n", "\n")):
        if piece == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        elif piece == "\r":
            column = 0
        elif piece == "\b":
            column = max(0, column - 1)
        elif MOVES.fullmatch(piece) and piece.endswith("A"):
            row = max(0, row - int(piece[2:-1] or 1))
        elif MOVES.fullmatch(piece):  # K erases to the line's end, 2K the whole line
            lines[row] = "" if "2" in piece else lines[row][:column]
        elif piece:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + piece + line[column + len(piece) :]
            column += len(piece)
    return "\n".join(lines)
