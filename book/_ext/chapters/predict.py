"""On a notebook's page, a result that one should predict is folded until one has.

A Markdown cell that says **Predict** asks, and the next code cell's output answers.
The page has a field for the guess in its place; ``predict.js`` shows the output. It is
there without JavaScript, on paper, and for whoever pressed "Show all results".
"""

from docutils import nodes
from sphinx.application import Sphinx

ALL = (
    '<p class="predict-first"><button type="button" class="predict-all">'
    "Show all results</button> of the cells that ask you to predict them.</p>"
)
ASK = (
    '<form class="predict-ask" data-predict="{id}"><label for="{id}-guess">Your guess'
    '</label><input id="{id}-guess" type="text" maxlength="120" autocomplete="off">'
    '<button type="submit">I have a guess: show</button></form>'
)


def answers(doctree: nodes.document) -> list[nodes.container]:
    """List the outputs that answer a prediction, in the order of the page."""
    found, asked = [], False
    for node in doctree.findall():
        kind = node.get("nb_element") if isinstance(node, nodes.container) else ""
        if isinstance(node, nodes.strong):
            asked = asked or node.astext() == "Predict"
        elif kind == "cell_code_output" and asked:
            found.append(node)
            asked = False
    return found


def fold(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Mark these outputs, and put the field for the guess before each."""
    if app.builder.name != "html" or not page.startswith("notebooks/"):
        return
    outputs = answers(doctree)
    for number, output in enumerate(outputs):
        name = f"predict-{number}"
        output["classes"].append("predict")
        output["ids"].append(name)
        ask = nodes.raw("", ASK.format(id=name), format="html")
        output.parent.insert(output.parent.index(output), ask)
    title = next(iter(doctree.findall(nodes.title)), None)
    if outputs and title is not None:
        top = nodes.raw("", ALL, format="html")
        title.parent.insert(title.parent.index(title) + 1, top)


def add_script(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load what the fields need, on pages that have some."""
    if app.builder.name == "html" and 'class="predict-ask"' in context.get("body", ""):
        app.add_js_file("predict.js", priority=600, loading_method="defer")


def setup(app: Sphinx) -> None:
    """Fold when all pages are read, so that only the HTML pages are changed."""
    app.connect("doctree-resolved", fold)
    app.connect("html-page-context", add_script)
