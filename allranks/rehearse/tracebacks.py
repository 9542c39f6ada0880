"""Tracebacks as the reader's script has them: no frame of ours, and each one once."""

import hashlib
import os
import re
import sys
import traceback
from pathlib import Path

from allranks.rehearse import lines, records

FRAME = re.compile(
    r'^ *File "(?P<path>[^"]+)", line \d+, in [^\n]*\n(?: {4,}[^\n]*\n)*', re.M
)
FRAMES = re.compile(f"(?:{FRAME.pattern.replace('?P<path>', '?:')})+", re.M)
STARTERS = "<frozen runpy>", "multiprocessing/process.py", "multiprocessing/spawn.py"
MOST = 2  # frames of packages in a row that are all shown


def shorten(text: str) -> str:
    """Leave out our frames of a text with tracebacks, and most of a package's row."""
    return FRAMES.sub(lambda found: _shorter(found[0]), text)


def _shorter(text: str) -> str:
    parts, row = [], []
    for frame in FRAME.finditer(text):
        path = frame["path"].replace("\\", "/")
        if path.startswith(lines.HERE) or path.endswith(STARTERS):
            continue
        if lines.is_package(path):
            row.append(frame[0])
        else:
            parts += [*_ends(row), frame[0]]
            row = []
    return "".join([*parts, *_ends(row)])


def _ends(row: list[str]) -> list[str]:
    """Return a row of frames; of a long one the first and the last."""
    left = len(row) - MOST
    if left <= 0:
        return row
    return [row[0], f"    ... and {left} more of packages\n", row[-1]]


def tell(error: BaseException, head: str = "") -> None:
    """Print an error's traceback, unless another rank has just printed the same.

    Args:
        error: that has ended this process.
        head: what comes before it.
    """
    text = "".join(traceback.format_exception(error))
    stage = records.stage()
    if not stage.full:
        text = shorten(text)
        if not _is_first(text, stage.folder):
            return
    rank = os.environ.get("RANK", "")
    mark = f"[rank{rank}]: " if rank else ""
    told = "".join(f"{mark}{line}\n" for line in text.splitlines())
    print(head + told, end="", file=sys.stderr, flush=True)


def _is_first(text: str, folder: str) -> bool:
    """Tell whether no process has told this; other ranks have other numbers in it."""
    same = re.sub(
        r"(?m)^(?! *File ).*", lambda line: re.sub(r"\d+", "0", line[0]), text
    )
    name = hashlib.sha256(same.encode()).hexdigest()
    try:
        Path(folder, f"{name}.told").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone
        return True
    return True
