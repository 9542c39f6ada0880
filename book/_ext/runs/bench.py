"""``{bench}``: a figure that ``make bench`` measured, read from book/_data/bench.json.

{bench}`ddp.default.ratio:.2f` shows one value, by a dotted path into the file and an
optional Python format. ``{bench-machine}`` says when and on which machine the figures
were measured, and ``{bench-machine} ddp`` says so for one part. ``{bench-picture}
MODULE.FUNCTION pipeline.gpipe`` calls a function of ours with a part of the file, and
shows the Picture that it draws. A figure that is not in the file fails the build.
{bench}`most_spread:.0%` is the largest spread at which tests/bench still publishes a
figure.
"""

import importlib
import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

DATA = "book/_data/bench.json"
MACHINE = "Measured on {date}: {machine}, {cores} cores, PyTorch {torch}."
MOST_SPREAD = 0.5  # a figure's largest run minus its smallest, over the figure
WIDER = (
    "The machine was busy: {} goes from {:.2f} to {:.2f}, more than the bound allows."
)


def too_wide(figures: dict, path: str = "") -> list[tuple[str, float, float, float]]:
    """Return (path, figure, smallest, largest) where runs differ too much.

    A figure that was measured several times has ``_min`` and ``_max`` beside it.
    """
    found = []
    for key, value in figures.items():
        if isinstance(value, dict):
            found += too_wide(value, f"{path}{key}.")
        elif f"{key}_min" in figures and f"{key}_max" in figures:
            low, high = figures[f"{key}_min"], figures[f"{key}_max"]
            if not high - low <= MOST_SPREAD * value:  # so that NaN is refused, too
                found.append((path + key, value, low, high))
    return found


def find(data: dict, path: str) -> object:
    """Return what a dotted path such as ``a.b.c`` leads to."""
    value = data
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise LookupError(f"{DATA} has no figure {path}: make bench measures it")
        value = value[key]
    return value


def lookup(data: dict, text: str) -> str:
    """Return the value at ``a.b.c``, or at ``a.b.c:.2f`` formatted.

    >>> lookup({"ddp": {"ratio": 0.912}}, "ddp.ratio:.2f")
    '0.91'
    """
    path, _, spec = text.partition(":")
    value = find({"most_spread": MOST_SPREAD} | data, path)
    if isinstance(value, dict | list):
        raise LookupError(f"{path} in {DATA} is not one figure")
    return format(value, spec)


def load(env: BuildEnvironment) -> dict:
    """Read the measurements, and have the page rebuilt when they change."""
    env.note_dependency(DATA)
    path = Path(env.srcdir, DATA)
    if not path.is_file():
        raise LookupError(f"no {DATA}: make bench writes it")
    return json.loads(path.read_text("utf8"))


class Bench(SphinxRole):
    """One measured figure in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Look up the figure, and put it into the sentence."""
        try:
            text = lookup(load(self.env), self.text)
        except (LookupError, ValueError) as error:
            problem = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, problem)], [
                problem
            ]
        return [nodes.inline(text, text, classes=["bench"])], []


class BenchPicture(SphinxDirective):
    """A picture that a function of ours draws from measured figures."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Call the function, and show its drawing as if a notebook had made it."""
        name, path = self.arguments
        module, _, function = name.rpartition(".")
        try:
            draw = getattr(importlib.import_module(module), function)
            picture = draw(find(load(self.env), path))
        except (AttributeError, ImportError, LookupError, ValueError) as error:
            raise self.error(f"{name} {path}: {error}") from None
        html = f'<div class="text_html">{picture._repr_html_()}</div>'
        return [nodes.raw("", html, format="html")]


class BenchMachine(SphinxDirective):
    """When and on which machine the figures, or those of one part, were measured."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the sentence, and add another one if the machine was busy."""
        try:
            data, part = load(self.env), "".join(self.arguments)
            text = MACHINE.format(**data.get("machines", {}).get(part, data["machine"]))
            wide = too_wide(find(data, part)) if part else []
        except LookupError as error:
            raise self.error(f"{DATA}: {error} is missing") from None
        if wide:  # possible for figures older than the bound
            name, _, low, high = wide[0]
            text = f"{text} {WIDER.format(name, low, high)}"
        return [nodes.paragraph(text, text, classes=["bench-machine"])]


def setup(app: Sphinx) -> None:
    """Add the role and the directive."""
    app.add_role("bench", Bench())
    app.add_directive("bench-machine", BenchMachine)
    app.add_directive("bench-picture", BenchPicture)
