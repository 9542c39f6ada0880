"""On a phone a table that is wider than the screen becomes a list of cards.

Each row is a card, and each of its cells says which column it belongs to. ``book.css``
does that; this module writes the columns' names into the cells, and the roles which a
table loses in a browser when CSS takes its layout away. A table that fits a phone, as
far as its longest words tell, stays as it is, and so does the clinic's index, whose
tables should look alike.
"""

import re
from html import escape, unescape
from itertools import chain, repeat

from docutils import nodes
from sphinx.application import Sphinx

PHONE = 340  # px that a table may take there, with some room for other fonts
LETTER, AROUND = 8.2, 20  # px: of a wide letter, and around what is in a cell
BRIEF = 30  # letters: cells that have no more stand in one line
TABLE = re.compile(r"<table\b([^>]*)>(.*?)</table>", re.DOTALL)
ROW = re.compile(r"<tr\b[^>]*>.*?</tr>", re.DOTALL)
CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)  # it isn't broken in a table
CELL = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</\1>", re.DOTALL)
NAMES = re.compile(r"\s*class=([\"'])(.*?)\1")
ROLES = {"thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
PLAIN = re.compile(rf"<({'|'.join(ROLES)})\b(?![^>]*\brole=)")


def words(html: str) -> str:
    """Return the text of a piece of HTML, in one line, with code as one word."""
    html = CODE.sub(lambda code: re.sub(r"[ -](?![^<]*>)", "_", code[0]), html)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


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


def cards(table: re.Match) -> str:
    """Name each cell's column in a table that is too wide for a phone."""
    attributes, body = table.groups()
    found = [CELL.findall(row) for row in ROW.findall(body)]
    rows = [[words(html) for _, _, html in row] for row in found]
    head = found and all(tag == "th" for tag, _, _ in found[0])
    even = len({len(row) for row in rows}) == 1 and "colspan" not in body
    if not head or not even or "clinic-index" in attributes or width(rows) <= PHONE:
        return table[0]
    brief = all(len(text) <= BRIEF for row in rows for text in row[1:])
    heads = iter(rows[0] * len(rows))
    kinds = chain(["columnheader"] * len(rows[0]), repeat("rowheader"))

    def label(cell: re.Match) -> str:
        name = next(heads)
        tag, more, html = cell.groups()
        if tag == "td" and name:
            more += f' data-label="{escape(name)}"'
        kind = next(kinds) if tag == "th" else ""
        if kind and words(html):  # an empty one is no head
            more += f' role="{kind}"'
        return f"<{tag}{more}>{html}</{tag}>"

    body = CELL.sub(label, body)
    if "<thead" not in body:
        body = body.replace("<tr", '<tr class="cards-head"', 1)
    body = PLAIN.sub(lambda tag: f'<{tag[1]} role="{ROLES[tag[1]]}"', body)
    names = NAMES.search(attributes)
    kind = f"{names[2] if names else ''} cards{' brief' if brief else ''}".strip()
    return (
        f'<table role="table" class="{kind}"{NAMES.sub("", attributes)}>{body}</table>'
    )


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
