"""``{exercises}``: the exercises of a page's chapter, each with its minutes and a link.

They are read from ``exercises/``, and the links lead to their headings in the chapter's
notebook, which can be looked up only when all pages have been read.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from book._ext.chapters.course_data import Exercise, exercises

LOG = logging.getLogger(__name__)
CHAPTER = re.compile(r"ch(\d+)_\w+")
INTRO = "The notebook checks your solutions."


class exercise_link(nodes.Inline, nodes.TextElement):
    """A title that becomes a link to the exercise in the notebook."""


class Exercises(SphinxDirective):
    """A sentence, and a list."""

    def run(self) -> list[nodes.Node]:
        """List the chapter's exercises."""
        root, name = Path(self.env.srcdir), Path(self.env.docname).name
        chapter = CHAPTER.fullmatch(name)
        found = exercises(root, chapter[1]) if chapter else ()
        if not found:
            raise self.error(f"there are no exercises of {name}")
        listed = nodes.bullet_list(bullet="-")
        for one in found:
            self.env.note_dependency(f"exercises/{one.name}.py")
            listed += nodes.list_item("", self.line(one, f"notebooks/{name}"))
        return [nodes.paragraph("", INTRO), listed]

    def line(self, one: Exercise, notebook: str) -> nodes.paragraph:
        """Return an exercise's number and title, which link to it, and its minutes."""
        head = f"Exercise {one.number} - "
        link = exercise_link("", f"{one.number} {one.title}", to=notebook, head=head)
        self.set_source_info(link)
        time = f", {one.minutes} minutes{one.level and f', {one.level}'}"
        return nodes.paragraph("", "", link, nodes.Text(time))


def resolve(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn the titles into links, now that all notebooks are read."""
    for link in list(doctree.findall(exercise_link)):
        name, text, anchor = link["to"], link.astext(), ""
        if name in app.env.found_docs:
            for title in app.env.get_doctree(name).findall(nodes.title):
                if title.astext().startswith(link["head"]):
                    anchor = title.parent["ids"][0]
        if not anchor:
            why = f"{name} has no heading that begins with '{link['head']}'"
            LOG.warning(why, location=link)
        uri = f"{app.builder.get_relative_uri(docname, name)}#{anchor}"
        link.replace_self(nodes.reference("", text, refuri=uri, internal=True))


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_node(exercise_link)
    app.add_directive("exercises", Exercises)
    app.connect("doctree-resolved", resolve)
