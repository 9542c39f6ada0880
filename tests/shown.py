"""What a page's command printed while these tests run, for other tests of its script.

``tests/book/test_commands.py`` keeps it; so a script that computes for long runs once.
"""

import os
from pathlib import Path

from allranks import launch
from allranks.base.paths import ROOT
from book._ext.runs import records


def _file(line: str) -> Path:
    """Return where the output of a command is kept until the tests end."""
    folder = Path(os.environ["ALLRANKS_FORKS"]).parent / "shown"
    folder.mkdir(exist_ok=True)
    return folder / records.Command(line).record


def keep(line: str, output: str) -> None:
    """Keep what a command printed."""
    part = _file(line).with_suffix(".part")
    part.write_text(output, "utf8")
    part.rename(_file(line))  # whoever reads it reads all of it


def lines(name: str, world_size: int) -> list[str]:
    """Return what rank 0 of a script prints, which is run unless a page has run it."""
    path = ROOT / "scripts" / f"{name}.py"
    path.read_bytes()  # make quick notes what a test reads
    line = f"torchrun --standalone --nproc-per-node {world_size} scripts/{name}.py"
    if not _file(line).exists():
        return launch(path, world_size).lines[0]
    said = _file(line).read_text("utf8").splitlines()
    return [text for text in said if text.startswith("[rank 0/")]
