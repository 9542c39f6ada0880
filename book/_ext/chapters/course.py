"""``{course-sheet}``, ``{course-plan}``, ``{progress}``: what a course needs to know.

The sheet has a section for each chapter: goals, questions, times, exercises, scripts,
and what to know beforehand. A plan divides up the time::

    ```{course-plan}
    :slots: 2
    :minutes: 240
    :parts: page, quizzes, notebook
    ```

and fails the build if its chapters need more; ``:sessions: 90`` spreads them over
sessions of 90 minutes instead. Its chapters are all of them, or the first slots of the
short courses, which the chapters' front matter deals out (``course: {slot: 1}``).
``{course-who}`` says for whom each chapter is, in its own words (``course: {who:}``).
``{progress}`` is the table that the page's script fills with what the reader has done.
All numbers are counted in the finished pages, which is why each directive only leaves a
placeholder until all of them have been read.
"""

from itertools import chain
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from book._ext import PAGES
from book._ext.chapters import course_data
from book._ext.chapters.course_tables import Builder, course_part, progress_cell
from book._ext.front import fronts

LOG = logging.getLogger(__name__)


class Part(SphinxDirective):
    """What the directives share: a placeholder, and the files that it depends on."""

    option_spec: ClassVar = {
        "slots": directives.positive_int,
        "minutes": directives.positive_int,
        "sessions": directives.positive_int,
        "parts": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Leave placeholders, and note every file that their tables are made from."""
        self.env.note_dependency("_toc.yml")
        for path in course_data.sources(Path(self.env.srcdir)):
            self.env.note_dependency(path)
        return self.places()

    def places(self) -> list[nodes.Node]:
        """Return one placeholder for this directive."""
        place = course_part(what=self.name, **self.options)
        self.set_source_info(place)
        return [place]


class Sheet(Part):
    """A section for each chapter, so that the contents list it."""

    def places(self) -> list[nodes.Node]:
        """Return a section for each chapter: its title, and a placeholder below."""
        found = []
        parts = course_data.chapter_map.read(Path(self.env.srcdir)).values()
        for chapter in [one for part in parts for one in part if one.number]:
            anchor = f"course-ch{chapter.number}"
            section = nodes.section(ids=[anchor], names=[anchor], classes=["course"])
            section += nodes.title("", f"{chapter.number}. {chapter.title}")
            place = course_part(what=self.name, chapter=f"ch{chapter.number}")
            self.set_source_info(place)
            section += place
            found.append(section)
        return found


class Who(SphinxDirective):
    """A paragraph with a sentence for each chapter that says for whom it is."""

    def run(self) -> list[nodes.Node]:
        """Put the chapters' own words into sentences, in the order of the book."""
        root = Path(self.env.srcdir)
        course, said = fronts(root, "course"), []
        for chapter in chain(*course_data.chapter_map.read(root).values()):
            if who := course.get(chapter.name, {}).get("who"):
                self.env.note_dependency(f"book/{chapter.name}.md")
                said.append(f"Chapter {chapter.number} {who}.")
        words, problems = self.parse_inline(" ".join(said))
        return [nodes.paragraph("", "", *words), *problems]


def fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the placeholders by their tables, now that all pages are read."""
    for place in list(doctree.findall(course_part)):
        try:
            place.parent.replace(place, Builder(app, docname).build(place))
        except ValueError as error:
            LOG.warning("%s: %s", place["what"], error, location=place)
            place.parent.remove(place)


def add_files(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load the script on pages that have progress to keep or to show."""
    marks = 'data-quiz="', 'class="exercise-help"', "progress-box"
    wanted = any(mark in context.get("body", "") for mark in marks)
    if wanted and app.builder.name in PAGES:
        app.add_css_file("quiz.css")
        app.add_js_file("progress.js", loading_method="defer")
    if doctree and any(
        "course-table" in n["classes"] for n in doctree.findall(nodes.table)
    ):
        app.add_css_file("course.css")


def visit_cell(writer: HTML5Translator, node: progress_cell) -> None:
    """Open a total, and tell the script which quizzes or exercises it counts."""
    data = {"data-progress": node["what"]}
    writer.body.append(writer.starttag(node, "span", "", **data))


def close_cell(writer: HTML5Translator, node: progress_cell) -> None:
    """Close the total."""
    writer.body.append("</span>")


def setup(app: Sphinx) -> None:
    """Add the directives."""
    app.add_node(course_part)
    app.add_node(progress_cell, html=(visit_cell, close_cell))
    app.add_directive("course-sheet", Sheet)
    app.add_directive("course-plan", Part)
    app.add_directive("course-who", Who)
    app.add_directive("progress", Part)
    app.connect("doctree-resolved", fill)
    app.connect("build-finished", course_data.forget)
    app.connect("html-page-context", add_files)
