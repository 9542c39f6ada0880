"""What a teacher wants to know about each chapter, read from the chapter's own files.

Times are estimates at fixed rates, which the course sheet states. What they count is in
the finished page; the time for predictions comes from the chapter map, so that nothing
is written down twice.

The rates are for reading to learn: between those of somebody who only reads along, and
of a newcomer who studies each line in a second language. (Silent reading of easy prose
takes adults about 240 words a minute, see Brysbaert 2019; learning from a text, 100 to
200. Reviewers of code find the most at up to 300 lines an hour.)
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from pathlib import Path
from weakref import WeakKeyDictionary

from docutils import nodes
from myst_nb.ext.glue.utils import PendingGlueReference
from sphinx.application import Sphinx

from book._ext.chapters import chapter_map
from book._ext.front import fronts
from book._ext.quiz.nodes import quiz
from book._ext.runs.fold import fold

WORDS_PER_MINUTE = 140  # of technical prose
LINES_PER_MINUTE = 6  # of Python or of a difference, read to understand it
MINUTES_PER_PICTURE = 0.75  # or table, or result of the notebook
MINUTES_PER_EXPLORABLE = 4  # to answer its question, and to try two or three things
MINUTES_PER_QUIZ = {"radio": 1, "checkbox": 2, "number": 2}
CODE = None, "python", "diff"  # None: the page's own language
GOALS = "After this page"
PARTS = {
    "page": "read the page",
    "quizzes": "its quizzes",
    "notebook": "run the notebook",
    "exercises": "the exercises",
}
KEPT: WeakKeyDictionary[Sphinx, dict[str, "Chapter"]] = WeakKeyDictionary()


def unfolded(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield what is below a node and is no fold, code block or quiz, nor in one.

    A code block itself is yielded.
    """
    for child in node.children:
        is_dropdown = (
            isinstance(child, nodes.container)
            and child.get("design_component") == "dropdown"
        )
        if is_dropdown or isinstance(child, fold | nodes.raw | nodes.comment | quiz):
            continue
        yield child
        if not isinstance(child, nodes.literal_block):
            yield from unfolded(child)


@dataclass(frozen=True)
class Exercise:
    """One exercise: ``ex5_1``, its title, its minutes, ``hard`` or no level."""

    name: str
    title: str
    minutes: int
    level: str

    @property
    def number(self) -> str:
        """Return the number as the exercise's heading writes it: 5.1."""
        return self.name.removeprefix("ex").replace("_", ".")


@dataclass(frozen=True)
class Chapter:
    """A chapter: its place on the map, its pages as trees, its exercises.

    The first page is the chapter's own, and the others are its section pages.
    """

    place: chapter_map.Chapter
    pages: tuple[nodes.document, ...] = field(repr=False)
    exercises: tuple[Exercise, ...]
    scripts: tuple[str, ...]
    slot: int = 0  # its place in the short courses; 0 if they leave it out

    def findall(self, kind: type) -> Iterator[nodes.Node]:
        """Yield the nodes of a kind on all of its pages."""
        return (node for page in self.pages for node in page.findall(kind))

    def unfolded(self) -> Iterator[nodes.Node]:
        """Yield what its pages show without a click."""
        return (node for page in self.pages for node in unfolded(page))

    @cached_property
    def goals(self) -> dict[str, nodes.paragraph | None]:
        """Find the sentence of each page that says what a reader can do afterwards."""
        found = {}
        for name, page in zip(self.place.pages, self.pages, strict=True):
            texts = page.findall(nodes.paragraph)
            found[name] = next((p for p in texts if p.astext().startswith(GOALS)), None)
        return found

    @cached_property
    def questions(self) -> list[str]:
        """List the section titles that are questions."""
        titles = [title.astext() for title in self.findall(nodes.title)]
        return [title for title in titles if title.endswith("?")]

    @cached_property
    def quizzes(self) -> list[quiz]:
        """List the quizzes of the pages."""
        return list(self.findall(quiz))

    @cached_property
    def num_lines(self) -> int:
        """Count the lines of code that the pages show unfolded."""
        blocks = [b for b in self.unfolded() if isinstance(b, nodes.literal_block)]
        code = [b for b in blocks if b.get("language") in CODE]
        return sum(len(block.astext().splitlines()) for block in code)

    @cached_property
    def num_words(self) -> int:
        """Count the words that the pages show unfolded, but for code and quizzes."""
        texts = [t.astext() for t in self.unfolded() if isinstance(t, nodes.Text)]
        return sum(len(re.findall(r"[A-Za-z][\w'’]*", text)) for text in texts)

    @cached_property
    def num_explorables(self) -> int:
        """Count the figures with controls."""
        boxes = self.findall(nodes.container)
        return sum("explorable-box" in box.get("classes", ()) for box in boxes)

    @cached_property
    def num_pictures(self) -> int:
        """Count pictures, tables, and results that come from the notebook."""
        kinds = nodes.figure, nodes.table, PendingGlueReference
        return sum(
            isinstance(node, kinds) or "picture-box" in node.get("classes", ())
            for node in self.findall(nodes.Element)
        )

    @property
    def minutes(self) -> dict[str, int]:
        """Return how many minutes each part takes."""
        return {
            "page": sum(self.reading.values()),
            "quizzes": sum(MINUTES_PER_QUIZ[box["kind"]] for box in self.quizzes),
            "notebook": self.place.notebook_minutes,
            "exercises": sum(exercise.minutes for exercise in self.exercises),
        }

    @cached_property
    def reading(self) -> dict[str, int]:
        """Return how many minutes the prose, the code and the figures take."""
        looked = MINUTES_PER_PICTURE * self.num_pictures
        return {
            "prose": ceil(self.num_words / WORDS_PER_MINUTE),
            "code": ceil(self.num_lines / LINES_PER_MINUTE),
            "figures": ceil(looked + MINUTES_PER_EXPLORABLE * self.num_explorables),
        }


def exercises(root: Path, number: str) -> tuple[Exercise, ...]:
    """Read the exercises of a chapter, in order."""
    paths = [
        (int(match[1]), path)
        for path in root.glob(f"exercises/ex{number}_*.py")
        if (match := re.fullmatch(rf"ex{number}_(\d+)", path.stem))
    ]
    found = []
    for _, path in sorted(paths):
        text = ast.get_docstring(ast.parse(path.read_text("utf8"))) or ""
        minutes = re.search(r"^Minutes:\s*(\d+)", text, re.MULTILINE)
        if not minutes:
            raise ValueError(f"exercises/{path.name} does not say its Minutes:")
        level = re.search(r"^Level:\s*(\w+)", text, re.MULTILINE)
        title = text.splitlines()[0].rstrip(".")
        minutes, level = int(minutes[1]), level[1] if level else ""
        found.append(Exercise(path.stem, title, minutes, level))
    return tuple(found)


def read(root: Path, doctree: Callable[[str], nodes.document]) -> dict[str, Chapter]:
    """Read each numbered chapter, by ``ch5``; ``doctree`` gives the tree of a page."""
    places = [place for part in chapter_map.read(root).values() for place in part]
    course = fronts(root, "course")
    return {
        f"ch{place.number}": Chapter(
            place,
            tuple(doctree(f"book/{name}") for name in place.pages),
            exercises(root, place.number),
            tuple(sorted(p.name for p in root.glob(f"scripts/ch{place.number}_*.py"))),
            course.get(place.name, {}).get("slot", 0),
        )
        for place in places
        if place.number
    }


def read_once(app: Sphinx) -> dict[str, Chapter]:
    """Read each chapter at a build's first call; all tables of the build share them."""
    if app not in KEPT:
        KEPT[app] = read(Path(app.srcdir), app.env.get_doctree)
    return KEPT[app]


def forget(app: Sphinx, error: Exception | None) -> None:
    """Forget the chapters: the next build of this app may read other pages."""
    KEPT.pop(app, None)


def sources(root: Path) -> list[str]:
    """List the files that a sheet is made from."""
    globs = (
        "book/ch*.md",
        "notebooks/ch*.ipynb",
        "scripts/ch[0-9]*.py",
        "exercises/ex*.py",
    )
    return sorted(
        path.relative_to(root).as_posix() for glob in globs for path in root.glob(glob)
    )


def sessions(steps: list[tuple], length: int) -> list[list[tuple]]:
    """Spread steps, whose last item is their minutes, over sessions of equal length.

    Their order is kept. A step that is longer than what is left of a session moves to
    the next one, unless it is longer than half a session: then it is split.

    >>> sessions([("a", 50), ("b", 60), ("c", 20)], 90)
    [[('a', 50), ('b', 40)], [('b', 20), ('c', 20)]]
    >>> sessions([("a", 70), ("b", 30)], 90)
    [[('a', 70)], [('b', 30)]]
    """
    if length < 1:
        raise ValueError(f"a session needs minutes, not {length}")
    shared, left = [], 0
    for *what, minutes in steps:
        while minutes:
            if left <= 0 or (minutes > left and minutes <= length / 2):
                shared.append([])
                left = length
            now = min(minutes, left)
            shared[-1].append((*what, now))
            minutes, left = minutes - now, left - now
    return shared
