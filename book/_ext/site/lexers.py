"""The colours of code and output that ranks share.

What one rank printed shows its prefix in the rank's colour, in records of commands and
in notebooks. A ``%%ranks`` cell is Python: IPython's own lexer takes the lines below a
magic that it does not know for plain text.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import Lexer, RegexLexer, bygroups, using
from pygments.token import Generic, Operator, Text
from sphinx.application import Sphinx


def rank_colour(lexer: Lexer, match: re.Match) -> Iterator[tuple]:
    """Give each rank a token of its own; book.css knows its colour."""
    colour = getattr(Generic, f"Rank{int(match[1] or match[2]) % 8}")
    yield match.start(), colour, match[0]


class RanksOutput(RegexLexer):
    """``[rank 1/4] text`` of a script, or ``rank 1: text`` of a cell."""

    name = "ranks"
    tokens: ClassVar = {
        "root": [
            (r"^(?:\[rank (\d+)[^]\n]*\]|rank (\d+)(?=:))", rank_colour),
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
    """Add both; the second takes the place of IPython's."""
    app.add_lexer("ranks", RanksOutput)
    app.add_lexer("ipython3", RanksCell)
