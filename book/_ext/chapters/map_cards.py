"""``{chapter-map}``: all pages as cards, with lines from what a chapter builds on.

Each card is a link. It shows the picture that opens the page, without its words, and
says what a reader can do after the page: the first clause of the sentence that the page
begins with, from its verb, since a heading above all cards says "you'll be able". All
cards look alike, as a color is a rank's. A card also names the chapters that it builds
on. Lines show the same for the eye; a phone has one column and no lines. How long a
chapter takes is what the course sheet says, too: course_data computes it from the
finished pages, so the map is drawn when all of them have been read.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from allranks import openings
from book._ext.chapters import course_data
from book._ext.chapters.chapter_map import Chapter, read

GOAL = re.compile(r"^\*\*After this page\*\* you (?:can )?(.+?\.)(?=\s)", re.M | re.S)
ABOUT = re.compile(r"^    description: (.+?\.)(?=\s|$)", re.M)
QUIZ = re.compile(r"^(`{3,})\{quiz\}\n:name: (\S+)$", re.M)
COLUMNS, UNIT, HIGH, ASIDE = 3, 100, 40, 12  # a column's width, a strip's, in its units

EMPTY: Mapping[str, int] = {}
Link = Callable[[str], str]


@dataclass(frozen=True)
class Card:
    """What the map shows of a page besides its title and times."""

    chapter: Chapter
    goal: str  # HTML
    quizzes: tuple[str, ...]  # the names under which a browser keeps progress
    exercises: tuple[str, ...]
    minutes: Mapping[str, int]  # of each part; empty if the page is no chapter

    @property
    def times(self) -> str:
        """Say how long its page with the quizzes, notebook and exercises take."""
        parts = {
            "page": self.minutes["page"] + self.minutes["quizzes"],
            "notebook": self.minutes["notebook"],
            "exercises": self.minutes["exercises"],
        }
        return ", ".join(f"{name} {time} min" for name, time in parts.items())


class map_place(nodes.General, nodes.Element):
    """Where the map will stand."""


def goal_of(page: str) -> str:
    """Return the first thing that a page promises, as HTML.

    The picture on the card says more, so a clause is enough if it has four words.

    >>> goal_of("# T\\n\\n**After this page** you can say `x`,\\nand *y*. And z.\\n")
    'say <code>x</code>, and y.'
    """
    text = (GOAL.search(page) or ABOUT.search(page) or [""] * 2)[1]
    text = re.sub(r"\s+\([^)]*\)|\*", "", " ".join(text.split()))
    text = re.sub(r"^((?:[^\s,]+ ){3,}[^\s,:]+)[,:] .*", r"\1.", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def card(root: Path, chapter: Chapter, minutes: Mapping[str, int] = EMPTY) -> Card:
    """Read a card's facts off the page and the names of its exercises."""
    page = (root / "book" / f"{chapter.name}.md").read_text("utf8")
    own = sorted(root.glob(f"exercises/ex{chapter.number or 'none'}_*.py"))
    names = tuple(path.stem for path in own if re.fullmatch(r"ex\d+_\d+", path.stem))
    pages = [(root / "book" / f"{name}.md").read_text("utf8") for name in chapter.pages]
    quizzes = tuple(name for text in pages for _, name in QUIZ.findall(text))
    return Card(chapter, goal_of(page), quizzes, names, minutes)


def nearest(chapters: list[Chapter]) -> dict[str, list[str]]:
    """Return what each chapter builds on, without what follows from the others.

    If 6 builds on 4 and on 5, and 5 on 4, then 6 builds on 5.
    """
    known = {one.name.partition("_")[0]: set(one.builds_on) for one in chapters}
    return {
        name: sorted(
            needed
            for needed in needs & known.keys()
            if not any(needed in known[other] for other in needs & known.keys())
        )
        for name, needs in known.items()
    }


def draw(parts: dict[str, list[Card]], link: Link) -> str:
    """Draw each part: its caption, and its cards in rows of three."""
    body = []
    needs = nearest([one.chapter for cards in parts.values() for one in cards])
    for caption, cards in parts.items():
        body.append(f'<p class="map-part">{escape(caption)}</p>')
        body.append('<div class="map-grid" role="list">')
        for first in range(0, len(cards), COLUMNS):
            if cards[0].chapter.number:
                body.append(strip([one.chapter for one in cards], first, needs))
            row = cards[first : first + COLUMNS]
            lefts = [None, *row]
            body += [item(*two, link, needs) for two in zip(row, lefts, strict=False)]
        body.append("</div>")
    return f'<div class="chapter-map">{"".join(body)}</div>'


def item(one: Card, left: Card | None, link: Link, needs: dict[str, list[str]]) -> str:
    """Draw a card; an arrow leads to it from the one on its left if it needs that."""
    chapter = one.chapter
    before = needs[chapter.name.partition("_")[0]] if chapter.number else []
    beside = left and left.chapter.name.partition("_")[0] in before
    name = f"map-card{' map-follows' if beside else ''}"
    number = f'<span class="map-number">{chapter.number}</span> '
    title = f"{number if chapter.number else ''}{escape(chapter.title)}"
    parts = [f'<a href="{escape(link(chapter.name))}">{title}</a>']
    if chapter.name in openings.NAMES:
        drawing = openings.thumbnail(chapter.name)
        parts.append(f'<div class="map-thumb no-paper">{drawing}</div>')
    if one.goal:
        goal = one.goal[0].upper() + one.goal[1:]
        parts.append(f'<p class="map-goal">{goal}</p>')
    if chapter.number:
        facts = [one.times]
        if before:
            names = " and ".join(name.removeprefix("ch") for name in before)
            facts.append(f"builds on {names}")
        parts.append(f'<p class="map-facts">{"; ".join(facts)}{progress(one)}</p>')
    return f'<div class="{name}" role="listitem">{"".join(parts)}</div>'


def progress(one: Card) -> str:
    """Return places in which the page's script says what the reader has done."""
    kinds = ("quiz", "quizzes", one.quizzes), ("exercise", "exercises", one.exercises)
    return "".join(
        f'<span class="map-progress" data-progress="{kind} {" ".join(names)}" '
        f'data-word="{word}"></span>'
        for kind, word, names in kinds
        if names
    )


def strip(chapters: list[Chapter], first: int, needs: dict[str, list[str]]) -> str:
    """Draw the lines into a row of a part's chapters, from ``first`` on.

    They come from the row above. What is needed from elsewhere has only its number.
    """
    places = {one.name.partition("_")[0]: i for i, one in enumerate(chapters)}
    rows = range(first - COLUMNS, first), range(first, first + COLUMNS)
    edges = [
        (places[needed], places[name])
        for name, before in needs.items()
        for needed in before
        if places.get(needed) in rows[0] and places.get(name) in rows[1]
    ]
    lines, tips = [], []
    left, come = Counter(), Counter()  # lines so far, out of a card and into it
    for level, (start, end) in enumerate(sorted(edges), 1):
        y = HIGH * level / (len(edges) + 1)
        x1, x2 = ((place % COLUMNS + 0.5) * UNIT for place in (start, end))
        left[start], come[end] = left[start] + 1, come[end] + 1
        # So that no line lies on another.
        x1, x2 = x1 - ASIDE * left[start], x2 + ASIDE * come[end]
        path = f"M{x1:g} 0V{y:g}H{x2:g}V{HIGH}"
        lines.append(f'<path d="{path}"/>')
        where = f"left:{x2 / UNIT / COLUMNS:.1%}"
        tips.append(f'<span class="map-tip" style="{where}"></span>')
    tags = []
    for place, one in enumerate(chapters[first : first + COLUMNS], first):
        near = *rows[0], place - 1
        for number in needs[one.name.partition("_")[0]]:
            if places.get(number) not in near:
                where = f"left:{(place % COLUMNS + 0.5) / COLUMNS:.1%}"
                words = f"from {number.removeprefix('ch')}"
                tags.append(f'<span class="map-from" style="{where}">{words}</span>')
    if not lines and not tags:
        return ""
    box = f"0 0 {COLUMNS * UNIT} {HIGH}"
    svg = f'<svg aria-hidden="true" viewBox="{box}" preserveAspectRatio="none">'
    drawn = f"{svg}{''.join(lines)}</svg>{''.join([*tips, *tags])}"
    return f'<div class="map-strip no-paper" aria-hidden="true">{drawn}</div>'


class ChapterMap(SphinxDirective):
    """The map, with a note below it on what its times include."""

    def run(self) -> list[nodes.Node]:
        """Leave a place for the map, and note every file that it is made from."""
        root = Path(self.env.srcdir)
        for path in "_toc.yml", *course_data.sources(root):
            self.env.note_dependency(path)
        for one in [one for chapters in read(root).values() for one in chapters]:
            self.env.note_dependency(f"book/{one.name}.md")
        return [map_place()]


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Draw the map, now that all pages are read."""
    places = list(doctree.findall(map_place))
    if not places:
        return

    def link(name: str) -> str:
        return app.builder.get_relative_uri(docname, f"book/{name}")

    root = Path(app.srcdir)
    chapters = course_data.read_once(app)
    minutes = {one.place.name: one.minutes for one in chapters.values()}
    parts = {
        part: [card(root, one, minutes.get(one.name, EMPTY)) for one in all_]
        for part, all_ in read(root).items()
    }
    for place in places:
        figure = nodes.raw("", draw(parts, link), format="html")
        place.replace_self([figure, note(minutes, link)])


def note(minutes: Mapping[str, Mapping[str, int]], link: Link) -> nodes.paragraph:
    """Say what the times include, their sum, and where plans with them are."""
    exercises = sum(parts["exercises"] for parts in minutes.values())
    rest = sum(sum(parts.values()) for parts in minutes.values()) - exercises
    uri = link("app_course")
    made = nodes.paragraph("", classes=["chapter-map-note"])
    made += nodes.Text(
        "The times for pages include the code and quizzes; the times for notebooks "
        f"include predicting each result. All {len(minutes)} chapters take about "
        f"{round(rest / 60)} hours, and their exercises another "
        f"{round(exercises / 60)}. To teach them, see the "
    )
    made += nodes.reference("", "course plans", refuri=uri, internal=True)
    made += nodes.Text(".")
    return made


def add_script(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load what fills in the reader's progress, on pages with a map."""
    if "map-progress" in context.get("body", "") and app.builder.name == "html":
        app.add_js_file("progress.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_node(map_place)
    app.add_directive("chapter-map", ChapterMap)
    app.connect("doctree-resolved", fill)
    app.connect("build-finished", course_data.forget)
    app.connect("html-page-context", add_script)
