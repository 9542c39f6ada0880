"""Write the README's figures: how much of the book is run again. ``make book`` does."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._ext

from allranks import clinic  # noqa: E402
from book._ext.runs import records  # noqa: E402


def counts(root: Path) -> dict[str, int]:
    """Count what the README names, by the words that follow the figure there."""
    cases = clinic.folder(root / "clinic")
    pages = [page.read_text("utf8") for page in root.glob("book/*.md")]
    return {
        "failures are replayed": sum(case.runs for case in cases),
        "more need GPUs": sum(not case.runs for case in cases),
        "wrong claims from widely read articles": len([*root.glob("errata/*_*.py")]),
        "commands": sum(len(records.commands(page)) for page in pages),
        "exercises have graders": len([*root.glob("exercises/ex*.py")]),
    }


def written(text: str, counts: dict[str, int]) -> str:
    """Return a text with the figures of today; lines stay as they are.

    Raises:
        ValueError: if it does not say each figure once.
    """
    for words, count in counts.items():
        said = re.compile(rf"\d+(?=\s+{words.replace(' ', chr(92) + 's+')}\b)")
        text, found = said.subn(str(count), text)
        if found != 1:
            raise ValueError(f"README.md says {found} times how many {words}")
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before = readme.read_text("utf8")
    if (after := written(before, counts(ROOT))) != before:
        readme.write_text(after, "utf8")
