"""``{explorable} topology``: an interactive figure on any page, without a kernel.

The body is YAML: the parts of the state that differ from the explorable's defaults.
``:caption:`` says what to look at. An impossible state fails the build. Without
JavaScript, and on paper, readers get a picture of the state. Explorables in the outputs
of notebooks come to life as well, because each page loads the scripts of all the
explorables that are on it.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from traitlets import TraitError

from allranks.topics import by_name
from allranks.topics.kit import bundle

FIGURE = re.compile(r'data-explorable="(\w+)"')


class Explorable(SphinxDirective):
    """An explorable and the state that it starts with."""

    required_arguments = 1
    has_content = True
    option_spec = {  # noqa: RUF012
        "caption": directives.unchanged_required,
        "name": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Check the state and put the figure on the page."""
        for path in (*bundle.KIT.glob("*"), *bundle.TOPICS.glob("*/*")):
            self.env.note_dependency(str(path))
        try:
            state = yaml.safe_load("\n".join(self.content)) or {}
            widget = by_name(self.arguments[0])(**state)
        except (LookupError, TraitError, TypeError, yaml.YAMLError) as error:
            raise self.error(f"explorable {self.arguments[0]}: {error}") from None
        figure = nodes.raw("", widget.figure(), format="html")
        box = nodes.container("", figure, classes=["explorable-box"])
        if "caption" in self.options:
            words, problems = self.parse_inline(self.options["caption"])
            box += nodes.paragraph("", "", *words, classes=["explorable-caption"])
            box += problems
        self.add_name(box)
        return [box]


def add_scripts(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load what the explorables on this page need."""
    names = dict.fromkeys(FIGURE.findall(context.get("body", "")))
    if names and app.builder.name == "html":
        app.add_css_file("explorables/kit.css")
        for script in ("explorables/kit", *(f"explorables/{name}" for name in names)):
            app.add_js_file(f"{script}.js", priority=600, loading_method="defer")
        app.add_js_file("explorables.js", priority=700, loading_method="defer")


def write_scripts(app: Sphinx) -> None:
    """Write the scripts, before Sphinx asks for their checksums."""
    if app.builder.name != "html":
        return
    folder = Path(app.outdir, "_static", "explorables")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"kit.js": bundle.kit_script(kernel=False)}
    texts |= {f"{name}.js": bundle.script(name) for name in bundle.names()}
    texts["kit.css"] = (bundle.KIT / "kit.css").read_text("utf8")
    for name, text in texts.items():
        (folder / name).write_text(text, "utf8")


def still(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Keep only the pictures where no script runs: in an EPUB, on paper."""
    if app.builder.name == "html":
        return
    for raw in doctree.findall(nodes.raw):
        text = re.sub(r' data-(?:explorable|state)="[^"]*"', "", raw.astext())
        if text != raw.astext():
            raw.children = [nodes.Text(text)]


def setup(app: Sphinx) -> None:
    """Add the directive and the scripts."""
    app.add_directive("explorable", Explorable)
    app.connect("builder-inited", write_scripts)
    app.connect("html-page-context", add_scripts)
    app.connect("doctree-resolved", still)
