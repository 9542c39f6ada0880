"""On a phone a table that is wider than the screen becomes a list of cards.

Each row is a card, and each of its cells says which column it belongs to. ``book.css``
does that; this module writes the columns' names into the cells, and the roles which a
table loses in a browser when CSS takes its layout away. A table that fits a phone, as
far as its longest words tell, stays as it is, and so does the table of the hangs,
whose columns are compared.
"""

import re

from bs4 import BeautifulSoup, Tag
from docutils import nodes
from sphinx.application import Sphinx

PHONE = 340  # px that a table may take there, with some room for other fonts
LETTER, AROUND = 8.2, 20  # px: of a wide letter, and around what is in a cell
BRIEF = 30  # letters: cells that have no more stand in one line
TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)


def words(cell: Tag) -> str:
    """Return the text of a cell in one line, with code as one word."""
    parts = (
        re.sub("[ -]", "_", text) if text.find_parent("code") else text
        for text in cell.strings
    )
    return " ".join("".join(parts).split())


def width(rows: list[list[str]]) -> float:
    """Return how narrow a table with these texts can be, in px.

    >>> round(width([["rank", "holds"], ["0", "everything"]]))
    155
    """
    longest = [
        max(len(word) for text in column for word in re.split(r"[ -]", text))
        for column in zip(*rows, strict=True)
    ]
    return sum(LETTER * letters + AROUND for letters in longest)


def cards(match: re.Match) -> str:
    """Name each cell's column in a table that is too wide for a phone."""
    table = BeautifulSoup(match[0], "html.parser").table
    cells = [row(["th", "td"]) for row in table("tr")]  # (rows, columns)
    texts = [[words(cell) for cell in row] for row in cells]
    names = table.get("class", [])
    head = texts and all(cell.name == "th" for cell in cells[0])
    even = len({len(row) for row in texts}) == 1 and not table.find(colspan=True)
    if not head or not even or "hang-table" in names or width(texts) <= PHONE:
        return match[0]
    brief = all(len(text) <= BRIEF for row in texts for text in row[1:])
    table["class"] = [*names, "cards", *(["brief"] if brief else [])]
    table["role"] = "table"
    for part in table(["thead", "tbody", "tr"]):
        part["role"] = "row" if part.name == "tr" else "rowgroup"
    if not table.thead:
        table.tr["class"] = "cards-head"
    for number, row in enumerate(cells):
        for cell, name, text in zip(row, texts[0], texts[number], strict=True):
            if cell.name == "td":
                cell["role"] = "cell"
                if name:
                    cell["data-label"] = name
            elif text:  # an empty one is no head
                cell["role"] = "rowheader" if number else "columnheader"
    return str(table)


def rewrite(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Rewrite the tables of a page."""
    if app.builder.name != "html" or not doctree:
        return
    body = TABLE.sub(cards, context.get("body", ""))
    # The corner above the row headings is no heading (axe: empty-table-header).
    context["body"] = body.replace('<th class="head"><p></p></th>', "<td></td>")


def setup(app: Sphinx) -> None:
    """Rewrite tables just before a page is written."""
    app.connect("html-page-context", rewrite)
