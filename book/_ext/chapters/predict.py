"""On a notebook's page, a result that one should predict is folded until one has.

A Markdown cell that says **Predict** asks; the code cells up to the next text answer.
The page has a field for the guess in its place; ``predict.js`` shows the output. It is
there without JavaScript, on paper, and for whoever pressed "Show all results". What the
result says about the guess is found as in JupyterLab: see allranks/predict/forms.py.
"""

import json
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from allranks.predict.forms import HERE, predictions

ALL = (
    '<p class="predict-first"><button type="button" class="predict-all">'
    "Show all results</button> without guessing first.</p>"
)
ASK = (
    '<form class="predict-ask" data-predict="{id}"{answer}><label for="{id}-guess">'
    'Your guess</label><input id="{id}-guess" type="text" maxlength="120" '
    'autocomplete="off">'
    '<button type="submit">I have a guess: show</button></form>'
)


def answers(doctree: nodes.document) -> list[list[nodes.container]]:
    """List the outputs that answer each prediction, in the order of the page.

    They are those of all code cells between the question and the next text.
    """
    groups: list[list[nodes.container]] = []
    group: list[nodes.container] | None = None  # of the question that is open

    def walk(node: nodes.Element) -> None:
        nonlocal group
        for child in node.children:
            kind = child.get("nb_element") if isinstance(child, nodes.container) else ""
            if kind == "cell_code":
                if group is not None:
                    group += [
                        part
                        for part in child.findall(nodes.container)
                        if part.get("nb_element") == "cell_code_output"
                    ]
            elif isinstance(child, nodes.section):
                walk(child)
            elif any(s.astext() == "Predict" for s in child.findall(nodes.strong)):
                group = []
                groups.append(group)
            elif group:  # text after the answer
                group = None

    walk(doctree)
    return [group for group in groups if group]


def patterns(path: Path) -> list[str]:
    """Return an attribute for each prediction: how its answer is found, or nothing."""
    notebook = json.loads(path.read_text("utf8"))
    shown = {cell["id"] for cell in notebook["cells"] if cell.get("outputs")}
    return [
        f' data-answer="{escape(one.answer)}"' if one.answer else ""
        for one in predictions(notebook)
        if shown & {*one.cells}
    ]


def fold(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Mark these outputs, and put the field for the guess before the first of each."""
    if app.builder.name != "html" or not page.startswith("notebooks/"):
        return
    groups = answers(doctree)
    asked = patterns(Path(app.env.doc2path(page)))
    for number, (outputs, answer) in enumerate(zip(groups, asked, strict=True)):
        name = f"predict-{number}"
        for part, output in enumerate(outputs):
            output["classes"].append("predict")
            output["ids"].append(f"{name}-{part}")
        first = outputs[0]
        ask = nodes.raw("", ASK.format(id=name, answer=answer), format="html")
        first.parent.insert(first.parent.index(first), ask)
    title = next(iter(doctree.findall(nodes.title)), None)
    if groups and title is not None:
        top = nodes.raw("", ALL, format="html")
        title.parent.insert(title.parent.index(title) + 1, top)


def add_script(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load what the fields need, on pages that have some."""
    if app.builder.name == "html" and 'class="predict-ask"' in context.get("body", ""):
        app.add_js_file("predict_verdict.js", priority=599, loading_method="defer")
        app.add_js_file("predict.js", priority=600, loading_method="defer")


def write_script(app: Sphinx) -> None:
    """Write what JupyterLab's form and the page share, as a script for the page."""
    if app.builder.name == "html":
        shared = (HERE / "verdict.js").read_text("utf8")
        text = f"{shared}return {{ answerIn, verdict }};"
        text = f"window.allRanksPredict = (() => {{\n{text}\n}})();\n"
        folder = Path(app.outdir, "_static")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "predict_verdict.js").write_text(text, "utf8")


def setup(app: Sphinx) -> None:
    """Fold when all pages are read, so that only the HTML pages are changed."""
    app.connect("builder-inited", write_script)
    app.connect("doctree-resolved", fold)
    app.connect("html-page-context", add_script)
