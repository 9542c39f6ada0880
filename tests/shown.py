"""What a page's command printed, for tests of the numbers in it.

``tests/book/test_commands.py`` runs the command again, and compares.
"""

from allranks.base.paths import ROOT
from book._ext.runs import records


def lines(name: str, world_size: int) -> list[str]:
    """Return what rank 0 of a script printed when its page ran it."""
    line = f"torchrun --standalone --nproc-per-node {world_size} scripts/{name}.py"
    said = records.read(ROOT / "book" / "_runs", records.Command(line)).splitlines()
    return [text for text in said if text.startswith("[rank 0/")]
