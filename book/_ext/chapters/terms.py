"""``{terms}``: the glossary, of the terms that all pages define in their front matter.

    glossary:
      mesh (设备网格): The ranks arranged in rows and columns.

Each letter gets a section, and each term its Chinese, if it has one, its sentence, and
a link to the page that explains it. The role ``{terms}`several` `` names the terms that
have several meanings, which their sentences number.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from book._ext.front import fronts

KEY = re.compile(r"(?P<name>.+?)(?: \((?P<chinese>.+)\))?")


@dataclass(frozen=True)
class Term:
    """A word, its Chinese (or nothing), its sentence, and the page that defines it."""

    name: str
    chinese: str
    sentence: str
    page: str

    @property
    def letter(self) -> str:
        """Return the letter under which it stands."""
        return self.name[0].upper()

    def __str__(self) -> str:
        """Return its entry in a ``{glossary}``."""
        chinese = f"[{self.chinese}]{{.language-zh}} · " if self.chinese else ""
        return f"{self.name}\n  {chinese}{self.sentence} {{ref}}`{self.page}`\n"


def terms(root: Path) -> list[Term]:
    """Return the terms of all pages in alphabetical order.

    Raises:
        ValueError: if two pages define the same word.
    """
    found: dict[str, Term] = {}
    for page, defined in fronts(root, "glossary").items():
        for key, sentence in defined.items():
            name, chinese = KEY.fullmatch(key).groups("")
            term = Term(name, chinese, sentence, page)
            if (other := found.setdefault(name.lower(), term)) is not term:
                raise ValueError(f"{name}: both {other.page} and {page} define it")
    return [found[name] for name in sorted(found)]


class Terms(SphinxDirective):
    """A section for each letter, with a glossary of its terms."""

    def run(self) -> list[nodes.Node]:
        """Write the sections as a page would have them, and read that."""
        root = Path(self.env.srcdir)
        for page in fronts(root, "glossary"):
            self.env.note_dependency(f"book/{page}.md")
        try:
            by_letter = groupby(terms(root), key=lambda term: term.letter)
        except ValueError as error:
            raise self.error(str(error)) from None
        text = ""
        for letter, some in by_letter:
            entries = "\n".join(map(str, some))
            text += f"## {letter}\n\n```{{glossary}}\n{entries}```\n\n"
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Several(SphinxRole):
    """Names the terms that have several meanings, as a list in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look for the terms whose sentence numbers its meanings."""
        found = terms(Path(self.env.srcdir))
        names = ", ".join(term.name for term in found if "(1)" in term.sentence)
        return [nodes.Text(names)], []


def setup(app: Sphinx) -> None:
    """Add the directive and the role."""
    app.add_directive("terms", Terms)
    app.add_role("terms", Several())
