"""``{bench}``: a figure that ``make bench`` measured, read from book/_data/bench.json.

{bench}`ddp.default.ratio:.2f` shows one value: a dotted path into the file, then
(optional) a Python format. ``{bench-machine}`` says when and on what the figures were
measured. A figure that is not in the file fails the build.
"""

import json
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective, SphinxRole

DATA = "book/_data/bench.json"
MACHINE = "Measured on {date}: {machine}, {cores} cores, PyTorch {torch}."


def lookup(data: dict, text: str) -> str:
    """The value at ``a.b.c``, or at ``a.b.c:.2f`` formatted.

    >>> lookup({"ddp": {"ratio": 0.912}}, "ddp.ratio:.2f")
    '0.91'
    """
    path, _, spec = text.partition(":")
    value = data
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise LookupError(f"{DATA} has no figure {path}: make bench measures it")
        value = value[key]
    if isinstance(value, dict | list):
        raise LookupError(f"{path} in {DATA} is not one figure")
    return format(value, spec)


def load(env) -> dict:
    """The measurements; the page that reads them is rebuilt when they change."""
    env.note_dependency(DATA)
    path = Path(env.srcdir, DATA)
    if not path.is_file():
        raise LookupError(f"no {DATA}: make bench writes it")
    return json.loads(path.read_text("utf8"))


class Bench(SphinxRole):
    """One measured figure in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look the figure up and put it into the sentence."""
        try:
            text = lookup(load(self.env), self.text)
        except (LookupError, ValueError) as error:
            problem = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, problem)], [
                problem
            ]
        return [nodes.inline(text, text, classes=["bench"])], []


class BenchMachine(SphinxDirective):
    """When and on which machine the figures were measured."""

    def run(self) -> list[nodes.Node]:
        """One sentence from the file's ``machine`` entry."""
        try:
            text = MACHINE.format(**load(self.env)["machine"])
        except LookupError as error:
            raise self.error(f"{DATA}: {error} is missing") from None
        return [nodes.paragraph(text, text, classes=["bench-machine"])]


def setup(app) -> dict:
    """Add the role and the directive."""
    app.add_role("bench", Bench())
    app.add_directive("bench-machine", BenchMachine)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
