"""``{picture} ch9_data.padding``: a picture that is drawn from what a run printed.

Its argument names a function of ``allranks/pictures``, its body is the caption, a
sentence. What the function is given has one home, and is never typed into a drawing:

- ``:output:`` is a command whose recorded output it draws; there may be several, with
  ``&&`` between them. The function gets ``$ command`` and the output below it.
- ``:bench:`` is a dotted path to what ``make bench`` measured.
- ``:glue:`` is a result that a notebook glued, such as
  ``../notebooks/ch1_environment.ipynb::ch1_choice``, as text.
- ``:hang:`` is a tool and a hang, as for ``{hang-output}``: what the tool said of it.
- ``:outside:`` has groups of strangers' tests, with ``&&`` between them, such as
  ``nanochat = nanochat test_steps.py``: how many of them ended in which way.
- ``:given:`` is an example that the prose beside it computes with.

With none of them, the function computes what it draws. A function raises ValueError if
an output no longer has the form that it reads, or contradicts the picture's title. That
fails the build.
"""

import importlib
import inspect
import json
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from allranks import pictures
from book._ext.runs import bench, outside, records

RUNS = "book/_runs"
HANGS = "book/_data/hangs.json"
FOLDER = Path(pictures.__file__).parent


def glued(path: Path, name: str) -> str:
    """Return what a notebook glued under a name, as text.

    Raises:
        LookupError: if there is no such notebook or name.
    """
    if not path.is_file():
        raise LookupError(f"no notebook {path.name}")
    for cell in json.loads(path.read_text("utf8"))["cells"]:
        for output in cell.get("outputs", ()):
            meta = output.get("metadata", {}).get("scrapbook", {})
            if meta.get("name") == name:
                for kind, text in output["data"].items():
                    if kind.endswith("text/plain"):
                        return "".join(text)
    raise LookupError(f"{path.name} glues no {name}: make notebooks runs it")


class PagePicture(SphinxDirective):
    """A picture of ``allranks/pictures``, with its caption."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {
        name: directives.unchanged_required
        for name in ("output", "bench", "glue", "hang", "outside", "given")
    }

    def run(self) -> list[nodes.Node]:
        """Find what the picture is drawn from, draw it, and set its caption below."""
        name = self.arguments[0]
        module, _, function = name.partition(".")
        for path in FOLDER.glob("*.py"):
            self.env.note_dependency(str(path))
        if not self.content:
            raise self.error(f"picture {name} needs a caption")
        try:
            draw = getattr(
                importlib.import_module(f"{pictures.__name__}.{module}"), function
            )
            sources = [self.source(*option) for option in self.options.items()]
            if len(sources) != len(inspect.signature(draw).parameters):
                raise ValueError(f"it takes {inspect.signature(draw)}: give it that")
            picture = draw(*sources)
        except (AttributeError, ImportError, LookupError, ValueError) as error:
            raise self.error(f"picture {name}: {error}") from None
        words, problems = self.parse_inline(" ".join(self.content))
        box = nodes.container("", classes=["picture-box", "text_html"])
        box += nodes.raw("", picture._repr_html_(), format="html")
        box += nodes.paragraph("", "", *words, classes=["picture-caption"])
        return [box, *problems]

    def source(self, kind: str, text: str) -> object:
        """Return what an option leads to, and have the page rebuilt when it changes."""
        if kind == "given":
            return text
        if kind == "bench":
            return bench.find(bench.load(self.env), text)
        if kind == "hang":
            self.env.note_dependency(HANGS)
            tool, hang = text.split()
            return json.loads(Path(self.env.srcdir, HANGS).read_text("utf8"))["hangs"][
                hang
            ][tool]["words"]
        if kind == "outside":
            return outside.groups(outside.load(self.env), text)
        if kind == "glue":
            relative, _, name = text.partition("::")
            path, _ = self.env.relfn2path(relative)
            self.env.note_dependency(path)
            return glued(Path(self.env.srcdir, path), name)
        found = []
        for line in text.split(" && "):
            command = records.Command(line.strip())
            self.env.note_dependency(f"{RUNS}/{command.record}")
            output = records.read(Path(self.env.srcdir, RUNS), command)
            found.append(f"$ {command.line}\n{output}")
        return "\n".join(found)


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("picture", PagePicture)
