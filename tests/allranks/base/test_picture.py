"""A picture says the same in its SVG as in text, and nothing by color alone."""

import doctest
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from allranks.base import picture as pictures
from allranks.base.picture import table
from allranks.base.svg import HUES, RANK_COLORS
from allranks.topics.collectives.picture import exchange
from allranks.topics.topology.picture import cluster
from tests.allranks.drawings import SVG, drawings, drawn


def test_the_examples_in_the_docstrings_hold():
    """The examples in the docstrings give what they say."""
    assert doctest.testmod(pictures).attempted >= 1
    assert doctest.testmod(pictures).failed == 0


@pytest.mark.parametrize(
    "picture",
    [exchange("all_to_all", [[1111] * 4] * 4, [[2222] * 4] * 4), cluster((8,) * 3, 16)],
    ids=["exchange", "cluster"],
)
def test_a_picture_fits_a_phone_and_any_theme(picture):
    """At a width of 364, letters have 11 pixels or more, in the color of the page."""
    wide, root = drawings(picture)
    width = float(root.get("viewBox").split()[2])
    letters = list(root.iter(f"{SVG}text"))
    said = Counter(t.text for t in letters)
    assert said >= Counter(t.text for t in wide.iter(f"{SVG}text"))
    assert min(float(t.get("font-size")) for t in letters) * 364 / width >= 11
    assert {t.get("fill") for t in letters} == {"currentColor"}
    assert root.get("role") == "img"
    assert "width:100%;max-width:" in root.get("style")
    assert " id=" not in picture.html  # two pictures on one page would clash
    assert picture._repr_html_() == picture.html
    assert repr(picture) == picture.text


def test_a_table_is_the_same_in_both_forms():
    """It has a head and rows, and escapes what HTML would take for a tag."""
    made = table(["a<b", "c"], [[1, 2], [10, "x"]])
    root = ElementTree.fromstring(made.html)
    assert [[cell.text for cell in row] for row in root] == [
        ["a<b", "c"],
        ["1", "2"],
        ["10", "x"],
    ]
    assert [cell.tag for cell in root[0]] == ["th", "th"]
    assert made.text == "a<b  c\n1    2\n10   x"


def test_colors_are_constant_and_differ():
    """Ranks 0 to 7 have eight different colors, and rank 8 has the first again."""
    assert len(set(HUES)) == len(set(RANK_COLORS)) == 8
    assert drawn(cluster((9,), 9))[1][9][1] == RANK_COLORS[0]
    for rank, color in enumerate(RANK_COLORS):  # its name in the style sheet
        assert color.startswith(f"var(--rank-{rank}, #")
