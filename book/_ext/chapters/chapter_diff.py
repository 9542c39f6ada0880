"""``{chapter-diff}``: what changed between two scripts, computed at build time.

    ```{chapter-diff} ../scripts/ch5_ddp.py
    :diff: ../scripts/ch5_single.py
    :pyobject: train
    ```

Paths are relative to the page. ``:pyobject:`` (optional) compares only one function or
class. ``:lesson:`` leaves out the functions that at least three scripts of the folder
have in common, since every job needs them and no chapter teaches them. ``:show: REGEX``
shows the lines that matter, and folds the whole below them (runs/fold.py); with
``:piece:`` it shows only these, since a later block folds the whole. Sphinx's own
``literalinclude`` has a ``:diff:`` too, but it prints the absolute paths of the machine
that built the book.
"""

import ast
from collections import Counter
from difflib import unified_diff
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book._ext.runs.fold import folded, that_matter


def definition(source: str, name: str) -> list[str]:
    """Return the lines of a top-level function or class, its decorators included."""
    for node in ast.parse(source).body:
        if getattr(node, "name", None) == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return source.splitlines()[first - 1 : node.end_lineno]
    raise ValueError(f"no function or class named {name}")


def common(folder: Path) -> set[str]:
    """Name the functions that are identical in at least three scripts."""
    copies = Counter()
    for script in folder.glob("*.py"):
        for node in ast.parse(script.read_text("utf8")).body:
            if isinstance(node, ast.FunctionDef):
                copies[node.name, ast.dump(node)] += 1
    return {name for (name, _), count in copies.items() if count >= 3}


def without(source: str, names: set[str]) -> list[str]:
    """Return the lines of a script without the functions that have these names."""
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            after = node.end_lineno
            while after < len(lines) and not lines[after]:
                after += 1
            del lines[node.lineno - 1 : after]
    return lines


class ChapterDiff(SphinxDirective):
    """A unified diff of two scripts, or of one function in both."""

    required_arguments = 1
    option_spec: ClassVar = {
        "diff": directives.unchanged_required,
        "pyobject": directives.unchanged_required,
        "lesson": directives.flag,
        "show": directives.unchanged_required,
        "brief": directives.flag,  # leave the whole out: it weighs too much
        "piece": directives.flag,  # leave out names and the whole, too
    }

    def run(self) -> list[nodes.Node]:
        """Read both files, compare, and show the difference."""
        if "diff" not in self.options:
            raise self.error("chapter-diff needs :diff: with the file to compare with")
        old_name, old = self.read(self.options["diff"])
        new_name, new = self.read(self.arguments[0])
        diff = list(unified_diff(old, new, old_name, new_name, lineterm=""))
        if not diff:
            raise self.error(f"{old_name} and {new_name} do not differ")
        whole = self.block("\n".join(diff))
        if "show" not in self.options:
            return [whole]
        try:
            some = that_matter("\n".join(diff[2:]), self.options["show"])
        except ValueError as error:
            raise self.error(f"{old_name}, {new_name}: {error}") from None
        if "piece" in self.options:
            return [self.block(some)]
        what = f"{self.options['pyobject']} in " if "pyobject" in self.options else ""
        rest = folded(whole, f"compare {what}{old_name} and {new_name}")
        if "brief" in self.options:
            rest = [nodes.paragraph("", rest[1].astext(), classes=["run-brief"])]
        some = self.block("\n".join([*diff[:2], some]))
        return [nodes.container("", some, *rest, classes=["run"])]

    def block(self, text: str) -> nodes.literal_block:
        """Build one highlighted block."""
        block = nodes.literal_block(text, text, language="diff")
        block["classes"].append("chapter-diff")
        self.set_source_info(block)
        return block

    def read(self, path: str) -> tuple[str, list[str]]:
        """Return (name from the book's root, lines) of a file that the page names."""
        name, absolute = self.env.relfn2path(path)
        self.env.note_dependency(name)
        try:
            source = Path(absolute).read_text("utf8")
            if "lesson" in self.options:
                return name, without(source, common(Path(absolute).parent))
            if "pyobject" not in self.options:
                return name, source.splitlines()
            return name, definition(source, self.options["pyobject"])
        except FileNotFoundError:
            raise self.error(f"no such file: {name}") from None
        except (SyntaxError, ValueError) as error:
            raise self.error(f"{name}: {error}") from error


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("chapter-diff", ChapterDiff)
