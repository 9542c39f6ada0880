"""What the map of the book knows of each page: its part, title, notebook and needs.

The order and the parts come from _toc.yml, titles from pages, times from notebooks.
A chapter that refers back to an earlier one builds on it. map_cards.py draws the map.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

DRAFT = "draft_"  # how the name of a page begins that is no chapter yet
MINUTES_PER_PREDICTION = 2  # think, run, read on
REF = re.compile(r"\{ref\}`(?:[^`<]*<)?(ch\d+)_")


@dataclass(frozen=True)
class Chapter:
    """A page and its notebook, as the map shows them."""

    name: str  # ch4_ranks
    title: str
    notebook_minutes: int  # 0 where there is none
    builds_on: tuple[str, ...]  # ch1, ch2, ...

    @property
    def number(self) -> str:
        """Return the chapter's number; other pages have none."""
        return str(place(self.name.partition("_")[0]) or "")


def notebook_minutes(path: Path) -> int:
    """Return the minutes that a notebook's predictions take."""
    if not path.is_file():
        return 0
    cells = json.loads(path.read_text("utf8"))["cells"]
    text = "".join("".join(cell["source"]) for cell in cells)
    return text.count("**Predict**") * MINUTES_PER_PREDICTION


def read(root: Path) -> dict[str, list[Chapter]]:
    """Read the chapters of each part, by the part's caption; leave drafts out."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    parts = {
        part["caption"]: [
            chapter(root, entry["file"])
            for entry in part["chapters"]
            if not Path(entry["file"]).name.startswith(DRAFT)
        ]
        for part in toc["parts"]
    }
    return {caption: chapters for caption, chapters in parts.items() if chapters}


def chapter(root: Path, file: str) -> Chapter:
    """Read what the map shows of one page."""
    page, name = (root / f"{file}.md").read_text("utf8"), Path(file).name
    own = name.partition("_")[0]
    earlier = {ref for ref in REF.findall(page) if place(ref) < place(own)}
    return Chapter(
        name,
        re.search(r"^# (.+)$", page, re.MULTILINE)[1],
        notebook_minutes(root / "notebooks" / f"{name}.ipynb"),
        tuple(sorted(earlier, key=place)) if own.startswith("ch") else (),
    )


def place(stem: str) -> int:
    """Return where a chapter stands in the book: 10 for ``ch10``; 0 for other pages.

    >>> sorted(["ch10", "ch2"], key=place)
    ['ch2', 'ch10']
    """
    return int(stem.removeprefix("ch")) if stem.startswith("ch") else 0
