"""Colors for the output of ranks, and for the code in their cells.

In records of commands and in notebooks, the prefix of a line has the color of the rank
that printed it. A ``%%ranks`` cell is highlighted as Python, because IPython's own
lexer would treat the lines below a magic that it does not know as plain text.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import Lexer, RegexLexer, bygroups, using
from pygments.token import Generic, Operator, Text
from sphinx.application import Sphinx


def rank_color(lexer: Lexer, match: re.Match) -> Iterator[tuple]:
    """Give each rank a token of its own, which book.css colors."""
    color = getattr(Generic, f"Rank{int(match[1] or match[2]) % 8}")
    yield match.start(), color, match[0]


class RanksOutput(RegexLexer):
    """``[rank 1/4] text`` of a script, or ``rank 1: text`` of a cell."""

    name = "ranks"
    tokens: ClassVar = {
        "root": [
            (r"^(?:\[rank (\d+)[^]\n]*\]|rank (\d+)(?=:))", rank_color),
            (r".*\n", Text),
        ]
    }


class RanksCell(IPython3Lexer):
    """A notebook's cell, which may start with ``%%ranks``."""

    name = "ipython3"
    magic = r"(?s)(\s*)(%%ranks)([^\n]*\n)(.*)"
    rule = (magic, bygroups(Text, Operator, Text, using(IPython3Lexer)))
    tokens: ClassVar = {
        **IPython3Lexer.tokens,
        "root": [rule, *IPython3Lexer.tokens["root"]],
    }


def setup(app: Sphinx) -> None:
    """Add both lexers; the second replaces IPython's."""
    app.add_lexer("ranks", RanksOutput)
    app.add_lexer("ipython3", RanksCell)
