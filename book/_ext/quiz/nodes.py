"""The nodes of a quiz, and how each kind of builder writes them.

An HTML page folds the answer away, and the script turns the whole quiz into a form. The
other builders (PDF, EPUB, plain text) collect the answers at the end of the page, since
nobody can think about a question whose answer stands below it.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from book._ext import PAGES

KINDS = {"radio": "", "checkbox": ": choose all that are right", "number": ""}


class quiz(nodes.container):
    """The whole quiz."""


class quiz_answer(nodes.container):
    """The answer with its reasons, which is folded away on a page."""


class quiz_head(nodes.paragraph):
    """The heading above the answer."""


class quiz_value(nodes.inline):
    """A number that changes with each try; ``key`` says which."""


def answer_of(*content: nodes.Node) -> quiz_answer:
    """Return an answer that consists of a heading and this content."""
    head = quiz_head("Answer", "Answer", classes=["quiz-answer-head"])
    return quiz_answer("", head, *content, classes=["quiz-answer"])


def letters(name: str) -> nodes.enumerated_list:
    """Return an empty list whose items are a, b, c."""
    how = {"enumtype": "loweralpha", "prefix": "", "suffix": "."}
    return nodes.enumerated_list(classes=[name], **how)


def verdict_of(*content: str | nodes.Node) -> nodes.strong:
    """Return the bold words with which a reason begins."""
    parts = [nodes.Text(one) if isinstance(one, str) else one for one in content]
    return nodes.strong("", "", *parts, classes=["quiz-verdict"])


def led(verdict: nodes.strong, reason: list[nodes.Node]) -> list[nodes.Node]:
    """Put a verdict in front of a reason."""
    if isinstance(reason[0], nodes.paragraph):
        reason[0].insert(0, verdict)
        return reason
    return [nodes.paragraph("", "", verdict), *reason]


def count(app: Sphinx, doctree: nodes.document) -> None:
    """Put a heading with its number on the page above each quiz."""
    found = list(doctree.findall(quiz))
    for number, box in enumerate(found, start=1):
        text = f"Quiz {number} of {len(found)}{KINDS[box['kind']]}"
        box.insert(0, nodes.paragraph(text, text, classes=["quiz-head"]))


def gather(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Move the answers to the end of a page that cannot fold them."""
    boxes = list(doctree.findall(quiz))
    if app.builder.name in PAGES or not boxes:
        return
    end = nodes.container(classes=["quiz-answers"])
    end += nodes.rubric("", "Answers to the quizzes")
    for number, box in enumerate(boxes, start=1):
        for answer in list(box.findall(quiz_answer)):
            answer.parent.remove(answer)
            text = f"Quiz {number}"
            answer[0] = quiz_head(text, text, classes=["quiz-answer-head"])
            end += answer
    next(iter(doctree.findall(nodes.section)), doctree).append(end)


def visit_quiz(writer: HTML5Translator, node: quiz) -> None:
    """Open the box, which the script finds by ``data-quiz``."""
    data = {"data-quiz": node["quiz"], "data-kind": node["kind"]}
    if "numbers" in node:
        data["data-numbers"] = node["numbers"]
    writer.body.append(writer.starttag(node, "div", **data))


def tag(writer: HTML5Translator) -> str:
    """Return an answer's element: it is folded on HTML pages, and open elsewhere."""
    return "details" if writer.builder.name in PAGES else "div"


def visit_answer(writer: HTML5Translator, node: quiz_answer) -> None:
    """Open the answer."""
    writer.body.append(writer.starttag(node, tag(writer)))


def close_answer(writer: HTML5Translator, node: quiz_answer) -> None:
    """Close the answer."""
    writer.body.append(f"</{tag(writer)}>\n")


def visit_head(writer: HTML5Translator, node: quiz_head) -> None:
    """Open what a reader clicks to unfold the answer."""
    name = "summary" if tag(writer) == "details" else "p"
    writer.body.append(writer.starttag(node, name, ""))


def close_head(writer: HTML5Translator, node: quiz_head) -> None:
    """Close the head."""
    name = "summary" if tag(writer) == "details" else "p"
    writer.body.append(f"</{name}>\n")


def visit_value(writer: HTML5Translator, node: quiz_value) -> None:
    """Mark the value for the script."""
    data = {"data-value": node["key"]}
    writer.body.append(writer.starttag(node, "span", "", CLASS="quiz-value", **data))


def close_div(writer: HTML5Translator, node: quiz) -> None:
    """Close the box."""
    writer.body.append("</div>\n")


def close_value(writer: HTML5Translator, node: quiz_value) -> None:
    """Close the value."""
    writer.body.append("</span>")


def add_files(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Load the script and the style on pages with a quiz."""
    scripted = app.builder.name in PAGES
    if not scripted or (doctree and any(doctree.findall(quiz))):
        app.add_css_file("quiz.css")
        if scripted:
            app.add_js_file("quiz.js", loading_method="defer")


def setup(app: Sphinx) -> None:
    """Add the nodes."""
    app.add_node(quiz, html=(visit_quiz, close_div))
    app.add_node(quiz_answer, html=(visit_answer, close_answer))
    app.add_node(quiz_head, html=(visit_head, close_head))
    app.add_node(quiz_value, html=(visit_value, close_value))
    app.connect("doctree-read", count)
    app.connect("doctree-resolved", gather)
    app.connect("html-page-context", add_files)
