"""A log as bytes, from a file or a pipe, and as text in parts of a bounded size."""

import codecs
import os
import re
from collections.abc import Iterable, Iterator

LIMIT = 256 * 2**20  # bytes of one log
CHUNK = 2**20
HEAD = 8192  # bytes that show what kind of file it is
_CONTROL = re.compile("[\0-\x08\x0e-\x1a\ufffd]")


def guess(head: bytes) -> str:
    """Guess the encoding of a text: UTF-16 has a mark, or a zero in every other byte.

    >>> guess("KeyError".encode("utf-16-be"))
    'utf-16-be'
    """
    for mark, name in (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"):
        if head.startswith(mark):
            return name
    even, odd, half = head[::2].count(0), head[1::2].count(0), len(head) // 2
    if half and max(even, odd) >= 0.4 * half and min(even, odd) <= half // 8:
        return "utf-16-be" if even > odd else "utf-16-le"
    return "utf-8"


def decoded(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the text of a log in parts.

    Args:
        chunks: the bytes of the log.
        name: what to call it in an error message.
    Raises:
        ValueError: with one sentence, if it is empty or no text.
    """
    head, full, decoder = b"", False, None
    for chunk in chain(chunks, last=b""):
        full = full or bool(chunk.strip(b" \t\r\n\0"))
        if decoder is None:
            head += chunk
            if chunk and len(head) < HEAD:
                continue
            decoder = codecs.getincrementaldecoder(guess(head))("replace")
            begin = decoder.decode(head[:HEAD], len(head) <= HEAD)
            packed = head[:3] in (b"PK\x03", b"\x1f\x8b\x08")
            if packed or len(_CONTROL.findall(begin)) > 8 + len(begin) // 10:
                raise ValueError(f"{name} is no text: give the log, unpacked")
            yield begin.replace("\0", "")
            chunk = head[HEAD:]
        yield decoder.decode(chunk, not chunk).replace("\0", "")
    if not full:
        raise ValueError(f"{name} is empty: nothing to diagnose")


def chain(chunks: Iterable[bytes], last: bytes) -> Iterator[bytes]:
    """Yield the chunks that are not empty, and then the last one."""
    yield from filter(None, chunks)
    yield last


def read(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file.

    Raises:
        ValueError: with one sentence, if it cannot be read or is too long.
    """
    try:
        if os.path.isdir(name):
            raise ValueError(f"{name} is a folder: give the logs in it, {name}/*.log")
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while size <= LIMIT and (chunk := file.read(CHUNK)):
                yield chunk
                size = max(size, file.tell() if file.seekable() else size + len(chunk))
            if size > LIMIT:
                raise ValueError(
                    f"{name} has more than {LIMIT >> 20} MiB: give its last part, "
                    f"tail -c {LIMIT >> 20}M {name} | python -m allranks.diagnose"
                )
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
