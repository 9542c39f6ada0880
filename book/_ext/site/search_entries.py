"""What the search can find: sections, cases, terms and figures, read off the doctrees.

A section's own text is what stands between its heading and the next heading. A case of
the clinic is a section whose lead is its cause; what it prints, and the literal words
of the signs by which a log is known, are its messages, so that a pasted line finds it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from docutils import nodes
from sphinx import addnodes

from book._ext.site.explorable import FIGURE

PAGE, CASE, TERM, FIGURES, NOTEBOOK = range(5)  # kinds, as search.js knows them
LEAD = 150  # characters of a section that results may show
SHORT = 90  # the same of a notebook's, whose chapter has more to show
MESSAGES = 500  # characters of what a case prints
SILENT = (nodes.comment, nodes.image, nodes.target, nodes.title, nodes.raw)
ERROR = re.compile(r"(?:Error|Exception|Warning)\b|[Ee]rror:|\w+ waits? in |signal")
PART = re.compile(r"(You see|Cause|More)[.:] (.*)")
WEIGHTS = {"You see": 3, "Cause": 2, "More": 2}  # what links say is said by readers
GOAL = "After this page"
IDENTIFIER = re.compile(r"[A-Za-z]\w*_\w+|[A-Za-z][a-z]*[A-Z]\w*|--[\w-]{3,}|@\w+")


@dataclass
class Entry:
    """One thing that a search may lead to.

    Attributes:
        above: the titles of the sections around it, the page's first.
        lead: its first sentences, which results show.
        names: identifiers in its code.
        messages: what a program prints when this is the matter.
        said: how readers put it (``said`` in the front matter).
        body: all of its text.
        weights: texts whose words count more, each with its weight.
    """

    page: str
    anchor: str
    kind: int
    title: str
    above: tuple[str, ...] = ()
    lead: str = ""
    names: list[str] = field(default_factory=list)
    messages: str = ""
    said: str = ""
    body: str = ""
    weights: list[tuple[str, int]] = field(default_factory=list)


def plain(node: nodes.Node, label: Callable[[str], str]) -> str:
    """Return a node's text, with the titles of the places that it refers to."""
    if isinstance(node, nodes.Text):
        return str(node)
    if isinstance(node, SILENT) or "no-search" in node.get("classes", ()):
        return ""
    if is_label(node):
        return label(node["reftarget"]) or node.astext()
    if type(node).__name__ == "PendingGlueReference":  # a number, known only later
        return "…"
    if isinstance(node, nodes.literal_block | nodes.doctest_block | nodes.math_block):
        return ""
    apart = isinstance(node, nodes.Inline | nodes.TextElement)
    return ("" if apart else " ").join(plain(child, label) for child in node.children)


def squeeze(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def own(section: nodes.Element) -> Iterator[nodes.Node]:
    """Yield the parts of a section that are not in a section below it."""
    for child in section.children:
        if not isinstance(child, nodes.section | nodes.title):
            yield child


def cut(text: str, size: int) -> str:
    """Return the first sentences of a text, or its first words if they are long."""
    if len(text) <= size:
        return text
    whole = [end.end() for end in re.finditer(r"[.?!](?= )", text[: size + 1])]
    if whole and whole[-1] > size // 3:
        return text[: whole[-1]]
    return text[:size].rsplit(" ", 1)[0] + " …"


def code(parts: Iterable[nodes.Node]) -> list[str]:
    """Return the identifiers in the code of a section, each once."""
    found: dict[str, None] = {}
    for part in parts:
        for kind in nodes.literal, nodes.literal_block:
            for block in part.findall(kind):
                if "specimen-output" not in block.get("classes", ()):
                    found.update(dict.fromkeys(IDENTIFIER.findall(block.astext())))
    return list(found)


def printed(parts: Iterable[nodes.Node]) -> str:
    """Return the lines of outputs that report an error, each once."""
    found: dict[str, None] = {}
    for part in parts:
        for block in part.findall(nodes.literal_block):
            for line in block.astext().splitlines():
                if ERROR.search(line) and not line.startswith((" ", "+", "-", "#")):
                    line = re.sub(r"^ranks? [\d–, and]+: ", "", line)
                    found[squeeze(line)] = None
    return " ".join(found)


def figures(
    page: str,
    box: nodes.Node,
    anchor: str,
    above: tuple,
    label: Callable[[str], str],
) -> Iterator[Entry]:
    """Yield the explorables in a part of a page."""
    for raw in box.findall(nodes.raw):
        if name := FIGURE.search(raw.astext()):
            holder = raw.parent if isinstance(raw.parent, nodes.container) else raw
            said = [squeeze(plain(p, label)) for p in holder.findall(nodes.paragraph)]
            place = (holder.get("ids") or [anchor])[0]
            lead = cut(" ".join(said), LEAD)
            yield Entry(page, place, FIGURES, name[1], above, lead, body=" ".join(said))


def is_label(node: nodes.Node) -> bool:
    """Tell whether a node is a reference whose only text is the label of a place."""
    return isinstance(node, addnodes.pending_xref) and not node.get("refexplicit")


def terms(page: str, title: str, part: nodes.Node) -> Iterator[Entry]:
    """Yield the terms of a glossary."""
    for item in part.findall(nodes.definition_list_item):
        term = next(iter(item.findall(nodes.term)), None)
        text = next(iter(item.findall(nodes.definition)), None)
        if term is not None and term["ids"] and text is not None:
            said = text.next_node(nodes.paragraph).children
            # Its last word is a link to the page that explains it, by a label.
            words = squeeze("".join(one.astext() for one in said if not is_label(one)))
            yield Entry(page, term["ids"][0], TERM, term.astext(), (title,), words)


def sections(
    page: str, doctree: nodes.document, label: Callable[[str], str]
) -> Iterator[Entry]:
    """Yield what a page offers to find, in the order of the page."""
    usual = NOTEBOOK if page.startswith("notebooks/") else PAGE

    def walk(section: nodes.section, above: tuple[str, ...]) -> Iterator[Entry]:
        title = squeeze(section.next_node(nodes.title).astext())
        parts, anchor = list(own(section)), section["ids"][0]
        paragraphs = [squeeze(plain(part, label)) for part in parts]
        paragraphs = [text for text in paragraphs if text]
        listed = [p for p in parts if "no-search" not in p.get("classes", ())]
        entry = Entry(page, anchor, usual, title, above, names=code(listed))
        if "case" in section["classes"]:
            entry.kind = CASE
            said = dict(
                found.groups() for found in map(PART.match, paragraphs) if found
            )
            entry.lead = cut(said.get("Cause", ""), LEAD)
            entry.weights = [(said.get(name, ""), n) for name, n in WEIGHTS.items()]
        else:
            prose = [text for text in paragraphs if not text.startswith(GOAL)]
            entry.lead = cut(" ".join(prose), SHORT if usual == NOTEBOOK else LEAD)
        entry.messages = printed(parts)[:MESSAGES]
        entry.body = " ".join(paragraphs)
        glossary = [p for p in parts if isinstance(p, addnodes.glossary)]
        if glossary:
            for part in glossary:
                yield from terms(page, above[0] if above else title, part)
        else:
            yield entry
        for part in parts if usual == PAGE else ():  # a notebook's is on a page, too
            yield from figures(page, part, anchor, (*above, title), label)
        for child in section.children:
            if isinstance(child, nodes.section):
                yield from walk(child, (*above, title))

    for section in doctree.children:
        if isinstance(section, nodes.section):
            yield from walk(section, ())
