"""What the map of the book knows of each page: its part, title, notebook and needs.

The order and the parts come from _toc.yml, titles from pages, times from notebooks.
A chapter that refers back to an earlier one builds on it. map_cards.py draws the map.

A chapter may have section pages, for subjects of their own: ``ch8_1_custom_ops`` is
the first one of chapter 8, as its name says. Notebook, exercises and scripts are their
chapter's. They stand in no list of chapters; what counts a chapter counts them with it.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

DRAFT = "draft_"  # how the name of a page begins that is no chapter yet
MINUTES_PER_PREDICTION = 2  # think, run, read on
SECTION = re.compile(r"ch(\d+)_(\d+)_\w+")  # the name of a section page
REF = re.compile(r"\{ref\}`(?:[^`<]*<)?(ch\d+)_")


@dataclass(frozen=True)
class Chapter:
    """A page and its notebook, as the map shows them."""

    name: str  # ch4_ranks
    title: str
    notebook_minutes: int  # 0 where there is none
    builds_on: tuple[str, ...]  # ch1, ch2, ...
    sections: tuple[str, ...] = ()  # the names of its section pages

    @property
    def number(self) -> str:
        """Return the chapter's number; other pages have none."""
        return str(place(self.name.partition("_")[0]) or "")

    @property
    def pages(self) -> tuple[str, ...]:
        """Return the names of its page and of its section pages."""
        return (self.name, *self.sections)


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
    own, below = name.partition("_")[0], sections(root, name)
    texts = [page, *((root / f"book/{one}.md").read_text("utf8") for one in below)]
    found = {ref for text in texts for ref in REF.findall(text)}
    earlier = {ref for ref in found if place(ref) < place(own)}
    return Chapter(
        name,
        re.search(r"^# (.+)$", page, re.MULTILINE)[1],
        notebook_minutes(root / "notebooks" / f"{name}.ipynb"),
        tuple(sorted(earlier, key=place)) if own.startswith("ch") else (),
        below,
    )


def sections(root: Path, chapter: str) -> tuple[str, ...]:
    """Return the names of a chapter's section pages, in order."""
    number = chapter.partition("_")[0]
    paths = root.glob(f"book/{number}_*.md") if place(number) else ()
    found = [match for path in paths if (match := SECTION.fullmatch(path.stem))]
    return tuple(match[0] for match in sorted(found, key=lambda one: int(one[2])))


def place(stem: str) -> int:
    """Return where a chapter stands in the book: 10 for ``ch10``; 0 for other pages.

    >>> sorted(["ch10", "ch2"], key=place)
    ['ch2', 'ch10']
    """
    return int(stem.removeprefix("ch")) if stem.startswith("ch") else 0
