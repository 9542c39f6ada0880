"""Show the lines that matter, and fold the rest: for long outputs and diffs.

``:show:`` of ``{run}`` and ``{chapter-diff}`` holds regular expressions, with `` | ``
between them (with blanks: a bar without blanks belongs to an expression). A line is
shown if one of them finds something in it, and ``(?s)^from.*?to`` finds several lines.
Each must find something, so that a page can't go on to promise lines that a new record
no longer has. On paper nothing unfolds: there a sentence says where the whole is.
"""

import re

from docutils import nodes
from sphinx.writers.html5 import HTML5Translator

GAP = "⋮"  # stands for the lines between two that are shown


class fold(nodes.container):
    """A part that readers unfold by a click on its ``title``."""


def that_matter(text: str, show: str) -> str:
    """Return the lines in which expressions find something, with a sign in between.

    Raises:
        ValueError: if an expression is none, or finds nothing, or if all lines match.

    >>> print(that_matter("x\\na 1\\nb 1\\nb 2\\nc 1\\nc 2", "^a | c|y"))
    a 1
    ⋮
    c 1
    c 2
    """
    lines, kept = text.splitlines(), set()
    for pattern in show.split(" | "):
        try:
            found = [*re.finditer(pattern, text, re.MULTILINE)]
        except re.error as error:
            raise ValueError(f":show: {pattern}: {error}") from None
        if not found:
            raise ValueError(f":show: {pattern} finds nothing in {len(lines)} lines")
        for match in found:
            first = text.count("\n", 0, match.start())
            kept |= {*range(first, first + match[0].count("\n") + 1)}
    if len(kept) == len(lines):
        raise ValueError(f":show: {show} finds all {len(lines)} lines: leave it out")
    shown, last = [], min(kept) - 1
    for i in sorted(kept):
        if i == last + 2:  # the sign would take as much room as the line
            shown.append(lines[i - 1])
        elif i > last + 2:
            shown.append(GAP)
        shown.append(lines[i])
        last = i
    return "\n".join(shown)


def folded(whole: nodes.literal_block, where: str, what: str = "") -> list[nodes.Node]:
    """Fold a whole output or diff; ``where`` says on paper where to find it."""
    lines = f"{len(whole.astext().splitlines())} lines"
    title = f"{what}, {lines}" if what else f"All {lines}"
    box = fold("", whole, classes=["run-fold", "no-paper"], title=title)
    return [box, nodes.paragraph("", f"{title}: {where}", classes=["fold-where"])]


def unfold(writer: HTML5Translator, node: fold) -> None:
    """Open a box that folds without any script."""
    tag = writer.starttag(node, "details")
    writer.body.append(f"{tag}<summary>{node['title']}</summary>\n")


def close(writer: HTML5Translator, node: fold) -> None:
    """Close the box."""
    writer.body.append("</details>\n")
