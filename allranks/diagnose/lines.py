"""A long text, split into lines, in little more memory than its file takes."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

BLOCK = 2**18  # letters, or bytes, that are processed at a time
CHUNK = 4000  # letters; a longer line is cut, so that an expression ends in time


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
