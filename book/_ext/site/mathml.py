r"""Formulas as MathML, made at build time, so pages need no script, font or network.

Chosen by ``html_math_renderer = "mathml"``. TeX that latex2mathml cannot translate is
a warning, so a strict build fails instead of showing a broken formula.
"""

import re
from html import escape
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LOG = logging.getLogger(__name__)
CHILDREN = {
    **dict.fromkeys(("mfrac", "msub", "msup", "munder", "mover", "mroot"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")


def translate(tex: str, display: str = "inline") -> str:
    r"""Translate a TeX formula to MathML.

    Raises:
        ValueError: if the TeX is wrong, or latex2mathml does not know a part of it.
            That tool rarely complains: it writes ``\foo``, or half of a fraction.

    >>> translate("W^2").partition("><")[2]
    'mrow><msup><mi>W</mi><mn>2</mn></msup></mrow></math>'
    """
    # latex2mathml does not know "aligned"; and Sphinx numbers the formulas itself.
    known = re.sub(r"\\(begin|end)\{(?:aligned|align|split)\}", r"\\\1{align*}", tex)
    if r"\\" in known and r"\begin" not in known:
        known = rf"\begin{{align*}}{known}\end{{align*}}"
    try:
        root = ElementTree.fromstring(convert(known, display=display))
    except Exception as error:  # latex2mathml's errors share no base class
        raise ValueError(f"{type(error).__name__} {error}".strip()) from error
    if known.count("{") - known.count(r"\{") != known.count("}") - known.count(r"\}"):
        raise ValueError("unbalanced braces")
    for element in root.iter():
        name = element.tag.rpartition("}")[2]
        if len(element) != CHILDREN.get(name, len(element)):
            raise ValueError(f"half a formula: {name} needs {CHILDREN[name]} parts")
        if name == "mtext":
            element.text = (element.text or "").replace(r"\_", "_")
            if element.attrib.pop("mathvariant", "") == "monospace":
                element.set("style", "font-family: monospace")
        if align := element.attrib.pop("columnalign", ""):  # not in browsers' MathML
            side = "right" if align == "right" else "left"
            element.set("style", f"text-align: {align}; padding-{side}: 0")
        if "\\" in (element.text or ""):
            raise ValueError(f"unknown command {element.text}")
    return ElementTree.tostring(root, encoding="unicode")


def formula(node: nodes.Element, display: str) -> str:
    """Return a node's formula as MathML, or warn and return its TeX."""
    tex = node.astext()
    try:
        return translate(tex, display)
    except ValueError as error:
        LOG.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{escape(tex)}</code>"


def inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a sentence."""
    writer.body.append(formula(node, "inline"))
    raise nodes.SkipNode


def block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number and anchor, if any."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="eqno">({number})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    mathml = formula(node, "block")
    writer.body.append(f'<div class="formula">{mathml}</div></div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
