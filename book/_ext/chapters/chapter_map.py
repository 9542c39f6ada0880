"""``{chapter-map}``: all chapters in one figure, drawn from the pages themselves.

The order and the parts come from _toc.yml, titles and times from pages and notebooks.
If a chapter refers back to an earlier one, an arrow leads from the earlier one to it.
Each box is a link.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

WORDS_PER_MINUTE = 200  # of technical prose
MINUTES_PER_PREDICTION = 2  # think, run, read on
FENCE = re.compile(r"^(`{3,})\{[^`]*?^\1$|\A---\n.*?^---$", re.MULTILINE | re.DOTALL)
REF = re.compile(r"\{ref\}`(?:[^`<]*<)?(ch\d+)_")
WIDTH, BOX, HEIGHT, LOW, PITCH, HEAD = 344, 284, 50, 32, 62, 34


@dataclass(frozen=True)
class Chapter:
    """A page and its notebook, as the map shows them."""

    name: str  # ch4_ranks
    title: str
    page_minutes: int
    notebook_minutes: int  # 0 where there is none
    builds_on: tuple[str, ...]  # ch1, ch2, ...

    @property
    def number(self) -> str:
        """Return the chapter's number; an appendix has none."""
        return self.name.partition("_")[0].removeprefix("ch").removesuffix("app")

    @property
    def times(self) -> str:
        """Say how long both take."""
        text = f"page {self.page_minutes} min"
        more = self.notebook_minutes and f", notebook {self.notebook_minutes} min"
        return text + (more or "")


def reading_minutes(page: str) -> int:
    """Return the minutes that a page's prose takes, without code and directives.

    >>> reading_minutes("word " * 401)
    3
    """
    num_words = len(re.findall(r"[A-Za-z]{2,}", FENCE.sub("", page)))
    return max(1, -(-num_words // WORDS_PER_MINUTE))


def notebook_minutes(path: Path) -> int:
    """Return the minutes that a notebook's predictions take."""
    if not path.is_file():
        return 0
    cells = json.loads(path.read_text("utf8"))["cells"]
    text = "".join("".join(cell["source"]) for cell in cells)
    return text.count("**Predict**") * MINUTES_PER_PREDICTION


def read(root: Path) -> dict[str, list[Chapter]]:
    """Read the chapters of each part, by the part's caption."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf8"))
    return {
        part["caption"]: [chapter(root, entry["file"]) for entry in part["chapters"]]
        for part in toc["parts"]
    }


def chapter(root: Path, file: str) -> Chapter:
    """Read what the map shows of one page."""
    page, name = (root / f"{file}.md").read_text("utf8"), Path(file).name
    own = name.partition("_")[0]
    earlier = {ref for ref in REF.findall(page) if ref < own}
    return Chapter(
        name,
        re.search(r"^# (.+)$", page, re.MULTILINE)[1],
        reading_minutes(page),
        notebook_minutes(root / "notebooks" / f"{name}.ipynb"),
        tuple(sorted(earlier)) if own.startswith("ch") else (),
    )


def draw(parts: dict[str, list[Chapter]], link: Callable[[str], str]) -> str:
    """Draw a box for each chapter, with arcs from the chapters that it builds on."""
    body, top, middle = [], 0, {}
    for caption, chapters in parts.items():
        style = 'font-size="15" font-weight="600" fill="currentColor"'
        body.append(f'<text x="0" y="{top + 22}" {style}>{escape(caption)}</text>')
        top += HEAD
        for one in chapters:
            middle[one.name.partition("_")[0]] = top + HEIGHT // 2
            body += box(one, top, link)
            for reach, needed in enumerate(reversed(one.builds_on)):
                if needed in middle:
                    body.append(arc(middle[needed] + 8, top + 17, reach))
            top += PITCH if one.number else LOW + 8
    label = "A map of the chapters: each box is a link to its page"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chapter-map" role="group" '
        f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" aria-label="{label}" '
        'font-family="system-ui, sans-serif" style="max-width:100%;height:auto">'
        f"{''.join(body)}</svg>"
    )


def box(one: Chapter, top: int, link: Callable[[str], str]) -> list[str]:
    """Draw one chapter as a link: its number, title and times, and what it needs."""
    needs = " and ".join(name.removeprefix("ch") for name in one.builds_on)
    seen = [one.number, one.title, one.times] if one.number else [one.title]
    spoken = " ".join(seen + ([f"builds on {needs}"] if needs else []))
    color = f"var(--rank-{(int(one.number) - 1) % 8})" if one.number else "currentColor"
    place = f'x="2" y="{top}" width="{BOX}" height="{HEIGHT if one.number else LOW}"'
    left = 36 if one.number else 12
    parts = [
        f'<a href="{escape(link(one.name))}" aria-label="{escape(spoken)}">',
        f'<rect {place} rx="5" style="stroke:{color}"/>',
    ]
    if one.number:
        number = f'x="18" y="{top + 31}" class="number" style="fill:{color}"'
        parts.append(f"<text {number}>{one.number}</text> ")
    title = f'x="{left}" y="{top + 21}" class="title"'
    parts.append(f"<text {title}>{escape(one.title)}</text> ")
    if one.number:
        parts.append(f'<text x="{left}" y="{top + 40}">{one.times}</text>')
    return [*parts, "</a>"]


def arc(start: int, end: int, reach: int) -> str:
    """Draw a line on the right from an earlier chapter's box to a later one's."""
    out = BOX + 18 + 12 * reach
    path = f"M{BOX + 2} {start}H{out}V{end}H{BOX + 6}m6 -5l-6 5l6 5"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'


class ChapterMap(SphinxDirective):
    """The figure, with a note below it on how the times were computed."""

    def run(self) -> list[nodes.Node]:
        """Read all pages, draw the figure, and add the note."""
        root = Path(self.env.srcdir)
        parts = read(root)
        for one in [one for chapters in parts.values() for one in chapters]:
            for path in f"book/{one.name}.md", f"notebooks/{one.name}.ipynb":
                self.env.note_dependency(path)
        self.env.note_dependency("_toc.yml")

        def link(name: str) -> str:
            uri = self.env.app.builder.get_relative_uri
            return uri(self.env.docname, f"book/{name}")

        figure = nodes.raw("", draw(parts, link), format="html")
        note = nodes.paragraph("", explain(parts), classes=["chapter-map-note"])
        return [nodes.container("", figure, note, classes=["text_html"])]


def explain(parts: dict[str, list[Chapter]]) -> str:
    """Say how the times were computed, and their sum for the numbered chapters."""
    numbered = [one for chapters in parts.values() for one in chapters if one.number]
    total = sum(one.page_minutes + one.notebook_minutes for one in numbered)
    return (
        "An arrow leads to a chapter that builds on an earlier one. Times: "
        f"{WORDS_PER_MINUTE} words per minute, and {MINUTES_PER_PREDICTION} minutes "
        f"for each question that a notebook asks. All {len(numbered)} chapters: "
        f"about {round(total / 60)} hours, without quizzes and exercises."
    )


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("chapter-map", ChapterMap)
