"""Commands on pages and their recorded outputs, with the only parser of both.

A page holds ``{run}`` blocks. ``book/_runs/`` holds one text file per command::

    $ torchrun --standalone --nproc-per-node 2 scripts/ch5_ddp.py
    exit 0
    [rank 0/2] ...

For a ``torchrun`` that fails, the file holds the whole terminal (see terminal.py); for
one that succeeds, the ranks' lines, ordered by rank. ``book/_tools/execute.py`` writes
the records, the build shows them, and the tests run the commands again and compare. All
three use this module.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<fence>`{3,}|:{3,})\{run\}[ \t]+(?P<command>.+?)[ \t]*\n"
    r"(?P<body>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
EXIT = re.compile(r"^:exit:[ \t]*(-?\d+)[ \t]*$", re.MULTILINE)
ONLY = re.compile(r"^:only:[ \t]*(.+?)[ \t]*$", re.MULTILINE)
TIMING = re.compile(
    r"\d[\d,]*(?:\.\d+)?\s?(?:samples/s|steps/s|[KMG]B/s|ms|µs|us|s|min|%)(?![\w/])"
)
NUMBER = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+")


@dataclass(frozen=True)
class Command:
    """A command line as a page states it, and the exit code the page expects.

    If the output describes the machine, ``only`` is a regular expression, and only what
    it finds must be the same everywhere.
    """

    line: str
    exit_code: int = 0
    only: str = ""

    @property
    def terminal(self) -> bool:
        """Tell whether the record is a whole terminal, with torchrun's own lines."""
        return bool(self.exit_code) and "torchrun" in self.line.split()

    @property
    def record(self) -> str:
        """Return a name for the record's file: readable, unique, valid everywhere."""
        slug = re.sub(r"[^A-Za-z0-9_.]+", "-", self.line).strip("-.")
        if len(slug) > 80:
            slug = f"{slug[:71]}-{hashlib.sha256(self.line.encode()).hexdigest()[:8]}"
        return f"{slug}.txt"


def commands(page: str) -> list[Command]:
    """List every ``{run}`` command in the text of a page, in its order."""
    found = []
    for match in FENCE.finditer(page):
        code, only = EXIT.search(match["body"]), ONLY.search(match["body"])
        code, only = int(code[1]) if code else 0, only[1] if only else ""
        found.append(Command(match["command"], code, only))
    return found


def write(folder: Path, command: Command, output: str) -> None:
    """Record a command's output."""
    folder.mkdir(exist_ok=True)
    text = f"$ {command.line}\nexit {command.exit_code}\n{output.rstrip()}\n"
    (folder / command.record).write_text(text, "utf8")


def read(folder: Path, command: Command) -> str:
    """Read the recorded output of a command.

    Raises:
        LookupError: if there is no record, or it has another command or exit code.
    """
    path = folder / command.record
    how = "make notebooks records it"
    if not path.is_file():
        raise LookupError(f"no record of `{command.line}`: {how}")
    head, code, output = (path.read_text("utf8") + "\n").split("\n", 2)
    if (head, code) != (f"$ {command.line}", f"exit {command.exit_code}"):
        raise LookupError(
            f"{path.name} records `{head}`, {code}; the page states "
            f"`{command.line}`, exit {command.exit_code}: {how}"
        )
    return output.strip("\n")


def same(old: str, new: str, only: str = "") -> bool:
    """Tell whether two outputs say the same, as a whole or in what ``only`` finds.

    Timings and percentages may differ in any way, and other decimal fractions by 5 % or
    0.05, because processors round differently. Everything else must be equal.
    """
    if only:
        old, new = (str(re.findall(only, text, re.MULTILINE)) for text in (old, new))
        if old == "[]":
            raise ValueError(f":only: {only} finds nothing: it would compare nothing")
    old, new = TIMING.sub("<timing>", old), TIMING.sub("<timing>", new)
    # The width of a number changes the padding of its column, so spaces don't count.
    texts = [re.sub(r"\s+", " ", NUMBER.sub("<number>", text)) for text in (old, new)]
    numbers = zip(NUMBER.findall(old), NUMBER.findall(new), strict=False)
    return texts[0].strip() == texts[1].strip() and all(
        math.isclose(float(a), float(b), rel_tol=0.05, abs_tol=0.05) for a, b in numbers
    )
