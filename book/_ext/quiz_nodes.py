"""The nodes of a quiz, and how each kind of builder writes them.

An HTML page folds the answer away; the script makes a form of it all. Every other
builder (PDF, EPUB, plain text) shows the answer below the question.
"""

from docutils import nodes

PAGES = ("html", "dirhtml")  # the builders whose pages have a script
KINDS = {"radio": "", "checkbox": ": choose all that are right", "number": ""}


class quiz(nodes.container):
    """The whole quiz."""


class quiz_answer(nodes.container):
    """What is folded away on a page."""


class quiz_head(nodes.paragraph):
    """The word above the answer."""


class quiz_value(nodes.inline):
    """A number that changes with each try; ``key`` says which."""


def answer_of(*content: nodes.Node) -> quiz_answer:
    """What belongs below the question, with its head."""
    head = quiz_head("Answer", "Answer", classes=["quiz-answer-head"])
    return quiz_answer("", head, *content, classes=["quiz-answer"])


def letters(name: str) -> nodes.enumerated_list:
    """An empty list whose items are a, b, c."""
    how = {"enumtype": "loweralpha", "prefix": "", "suffix": "."}
    return nodes.enumerated_list(classes=[name], **how)


def verdict_of(*content) -> nodes.strong:
    """What a reason begins with."""
    parts = [nodes.Text(one) if isinstance(one, str) else one for one in content]
    return nodes.strong("", "", *parts, classes=["quiz-verdict"])


def led(verdict: nodes.strong, reason: list[nodes.Node]) -> list[nodes.Node]:
    """A reason with its verdict in front."""
    if isinstance(reason[0], nodes.paragraph):
        reason[0].insert(0, verdict)
        return reason
    return [nodes.paragraph("", "", verdict), *reason]


def count(app, doctree: nodes.document) -> None:
    """Head each quiz with its number on the page."""
    found = list(doctree.findall(quiz))
    for number, box in enumerate(found, start=1):
        text = f"Quiz {number} of {len(found)}{KINDS[box['kind']]}"
        box.insert(0, nodes.paragraph(text, text, classes=["quiz-head"]))


def visit_quiz(writer, node: quiz) -> None:
    """Open the box; the script finds it by data-quiz."""
    data = {"data-quiz": node["quiz"], "data-kind": node["kind"]}
    if "numbers" in node:
        data["data-numbers"] = node["numbers"]
    writer.body.append(writer.starttag(node, "div", **data))


def tag(writer) -> str:
    """The element of an answer: folded on a page, open elsewhere."""
    return "details" if writer.builder.name in PAGES else "div"


def visit_answer(writer, node: quiz_answer) -> None:
    """Open the answer."""
    writer.body.append(writer.starttag(node, tag(writer)))


def close_answer(writer, node: quiz_answer) -> None:
    """Close the answer."""
    writer.body.append(f"</{tag(writer)}>\n")


def visit_head(writer, node: quiz_head) -> None:
    """What a reader clicks to unfold the answer."""
    name = "summary" if tag(writer) == "details" else "p"
    writer.body.append(writer.starttag(node, name, ""))


def close_head(writer, node: quiz_head) -> None:
    """Close it."""
    name = "summary" if tag(writer) == "details" else "p"
    writer.body.append(f"</{name}>\n")


def visit_value(writer, node: quiz_value) -> None:
    """Mark the value for the script."""
    data = {"data-value": node["key"]}
    writer.body.append(writer.starttag(node, "span", "", CLASS="quiz-value", **data))


def close_div(writer, node: quiz) -> None:
    """Close the box."""
    writer.body.append("</div>\n")


def close_value(writer, node: quiz_value) -> None:
    """Close the value."""
    writer.body.append("</span>")


def add_files(app, pagename, templatename, context, doctree) -> None:
    """Load the script and the style where there is a quiz."""
    page = app.builder.name in PAGES
    if not page or (doctree and any(doctree.findall(quiz))):
        app.add_css_file("quiz.css")
        if page:
            app.add_js_file("quiz.js", loading_method="defer")


def setup(app) -> dict:
    """Add the nodes."""
    app.add_node(quiz, html=(visit_quiz, close_div))
    app.add_node(quiz_answer, html=(visit_answer, close_answer))
    app.add_node(quiz_head, html=(visit_head, close_head))
    app.add_node(quiz_value, html=(visit_value, close_value))
    app.connect("doctree-read", count)
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
