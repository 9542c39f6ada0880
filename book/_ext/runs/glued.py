"""Leave out on a notebook's page what only hands its results to other pages.

``glue(name, value, display=False)`` keeps a result under a name, and a chapter's page
prints it in a sentence. In JupyterLab the call has to run; on the page it would stand
between the reader and the cell's idea.
"""

import re

from docutils import nodes
from sphinx.application import Sphinx

GLUE = re.compile(r"from myst_nb import glue$|(?P<indent> *)glue\(.*\)$")


def without_glue(code: str) -> str:
    """Return a cell's code without the lines that hand results on.

    A call that is all of a loop's body stays, or the loop would end in nothing.

    >>> print(without_glue("from myst_nb import glue\\n\\nx = 1\\nglue('x', x)\\nx"))
    x = 1
    x
    """
    kept: list[str] = []
    lines = code.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if glue := GLUE.match(line):
            opens = kept and kept[-1].endswith(":")
            if not opens or below.startswith(glue["indent"]):
                continue
        kept.append(line)
    text = "\n".join(kept).strip("\n")
    return re.sub(r"\n{3,}(?=from |import )", "\n\n", text)  # where an import was


def leave_out(app: Sphinx, doctree: nodes.document) -> None:
    """Leave these lines out of a notebook's cells, and a cell that has no others."""
    if not app.env.docname.startswith("notebooks/"):
        return
    for cell in [*doctree.findall(nodes.container)]:
        if cell.get("nb_element") != "cell_code_source":
            continue
        for block in [*cell.findall(nodes.literal_block)]:
            code = block.astext()
            if (text := without_glue(code)) == code:
                continue
            if text:
                block.children = [nodes.Text(text)]
                block.rawsource = text
            else:
                cell.parent.remove(cell)


def setup(app: Sphinx) -> dict[str, bool]:
    """Read each notebook with fewer lines."""
    app.connect("doctree-read", leave_out)
    return {"parallel_read_safe": True}
