"""A notebook's page leaves out what only hands its results to other pages."""

import re
from html import unescape

import nbformat
import pytest

from allranks.base.paths import ROOT
from book._ext.runs.glued import without_glue

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_shows_its_cells_without_glue(site, path):
    """Each cell is whole apart from that; one that only hands on is left out."""
    html = (site / "notebooks" / f"{path.stem}.html").read_text("utf8")
    inputs = re.findall(r'class="[^"]*cell_input.*?<pre>(.*?)</pre>', html, re.DOTALL)
    shown = [unescape(re.sub("<[^>]+>", "", code)).strip() for code in inputs]
    cells = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    assert shown == [code for cell in cells if (code := without_glue(cell).strip())]
    assert not [code for code in shown if "glue(" in code]


def test_a_loop_does_not_end_in_nothing():
    """What is all of a loop's body stays, whatever follows the loop."""
    loop = "for x in xs:\n    glue('x', x)"
    assert without_glue(loop) == loop
    assert without_glue(f"{loop}\nxs") == f"{loop}\nxs"
    assert without_glue(
        "try:\n    f()\nexcept E as e:\n    glue('e', e)\n    g(e)"
    ) == ("try:\n    f()\nexcept E as e:\n    g(e)")
    assert without_glue("import os\n\nfrom myst_nb import glue\n\nfrom x import y") == (
        "import os\n\nfrom x import y"
    )
