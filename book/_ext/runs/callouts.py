"""``{callouts}``: a listing with numbers at its lines, and below it what they mean.

The body is a numbered list. The first code of an item, such as ``GPU-Util``, is what
its number stands at: the first place in the listing behind the item before. The listing
is a file with ``:pyobject:``, or with ``:glue:`` what a notebook glued as text. A
listing that no longer has what an item names fails the build.
"""

import re
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.application import Sphinx
from sphinx.directives.code import LiteralIncludeReader
from sphinx.util.docutils import SphinxDirective

from book._ext.runs.picture import glued

INDENT = re.compile(r'(?:<span class="w">)?\s*(?:</span>)?')
MARK = '<span class="callout" data-number="{}">{}</span>'


def marked(text: str, wanted: list[str]) -> list[tuple[int, int, int]]:
    """Return where each callout is: (line, first column, behind the last column).

    Raises:
        LookupError: if the text does not have it.

    >>> marked("a b\\nb", ["b", "b"])
    [(0, 2, 3), (1, 0, 1)]
    """
    found, lines, line, column = [], text.splitlines(), 0, 0
    for name in wanted:
        while line < len(lines) and (at := lines[line].find(name, column)) < 0:
            line, column = line + 1, 0
        if line == len(lines):
            raise LookupError(f"the listing has no {name} there: say what it has now")
        column = at + len(name)
        found.append((line, at, column))
    return found


def terminal(text: str, places: list[tuple[int, int, int]]) -> str:
    """Mark words in a text."""
    lines = text.splitlines()
    html = [escape(line) for line in lines]
    for line in {line for line, *_ in places}:
        inside = sorted(
            (a, b, n) for n, (at, a, b) in enumerate(places, 1) if at == line
        )
        parts, end = [], 0
        for a, b, number in inside:
            parts += [escape(lines[line][end:a])]
            parts += [MARK.format(number, escape(lines[line][a:b]))]
            end = b
        html[line] = "".join([*parts, escape(lines[line][end:])])
    return "\n".join(html)


def code(text: str, places: list[tuple[int, int, int]]) -> str:
    """Color Python, and mark lines of it."""
    html = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    lines = html.splitlines()
    for number, (line, *_) in enumerate(places, 1):
        indent = INDENT.match(lines[line])[0]
        rest = lines[line].removeprefix(indent)
        lines[line] = indent + MARK.format(number, rest)
    return "\n".join(lines)


class Callouts(SphinxDirective):
    """A listing with numbers, and a list of what they mean."""

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar = {
        "glue": directives.unchanged_required,
        "pyobject": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Find each item's words in the listing, and put its number there."""
        box = nodes.container(classes=["callouts"])
        body = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, body)
        items = list(body.findall(nodes.list_item))
        try:
            text = self.listing()
            wanted = [next(item.findall(nodes.literal)).astext() for item in items]
            if not wanted:
                raise LookupError("there is no numbered list")
            places = marked(text, wanted)
        except StopIteration:
            raise self.error("callouts: an item names no code") from None
        except (LookupError, OSError, ValueError) as error:
            raise self.error(f"callouts: {error}") from None
        draw, language = (code, "python") if self.arguments else (terminal, "text")
        html = (
            f'<div class="highlight-{language} notranslate"><div class="highlight">'
            f"<pre>{draw(text, places)}\n</pre></div></div>"
        )
        box += nodes.raw("", html, format="html")
        box += body.children
        return [box]

    def listing(self) -> str:
        """Return the text of the listing."""
        if "glue" in self.options:
            relative, _, name = self.options["glue"].partition("::")
            path, _ = self.env.relfn2path(relative)
            self.env.note_dependency(path)
            return glued(Path(self.env.srcdir, path), name)
        if not self.arguments:
            raise LookupError("name a file, or :glue: a result")
        relative, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        options = {
            key: self.options[key] for key in ("pyobject",) if key in self.options
        }
        return LiteralIncludeReader(path, options, self.config).read()[0]


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("callouts", Callouts)
