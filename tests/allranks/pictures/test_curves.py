"""Curves: every number is where its axis says, and impossible ones are refused."""

import re
from xml.etree import ElementTree

import pytest

from allranks.pictures.curves import WIDTH, curves

LINES = {"a": [(1, 0.1), (10, 1), (1000, 10)], "b": [(100, 2), (200, 5)]}


def drawn(picture, name):
    """Return the points of a line, as they are drawn."""
    html = picture._repr_html_()
    svg = ElementTree.fromstring(html[html.index("<svg") : html.rindex("</svg>") + 6])
    for path in svg.iter("{http://www.w3.org/2000/svg}path"):
        if path.findtext("{http://www.w3.org/2000/svg}title") == name:
            pairs = re.findall(r"(-?\d+) (-?\d+)", path.get("d"))
            return [(int(x), int(y)) for x, y in pairs]
    raise AssertionError(f"no line {name}")


def test_equal_factors_are_equal_ways_on_logarithmic_axes():
    """From 1 to 10 is half as far as from 10 to 1000; up, each factor of 10 counts."""
    (x1, y1), (x2, y2), (x3, y3) = drawn(curves("t", "x", "y", LINES, log=True), "a")
    assert 2 * (x2 - x1) == pytest.approx(x3 - x2, abs=2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=2)


def test_equal_differences_are_equal_ways_on_others():
    """A straight line stays one."""
    line = {"a": [(0, 0), (1, 2), (3, 6)]}
    (x1, y1), (x2, y2), (x3, y3) = drawn(curves("t", "x", "y", line), "a")
    assert 2 * (x2 - x1) == pytest.approx(x3 - x2, abs=2)
    assert 2 * (y1 - y2) == pytest.approx(y2 - y3, abs=2)


@pytest.mark.parametrize("log", [False, True])
def test_names_wrap_into_rows_inside_the_drawing(log):
    """Six long names stand above the plot, none outside of the picture's width."""
    lines = {f"a rather long name {n}": [(1, 1), (2, 2)] for n in range(6)}
    picture = curves("t", "x", "y", lines, log=log)
    found = re.findall(
        r'x="(\d+)" y="(\d+)"[^>]*>a rather long name', picture._repr_html_()
    )
    assert len({y for _, y in found}) == 6
    plot = min(y for _, y in drawn(picture, next(iter(lines))))
    assert all(int(x) + 8 * 20 < WIDTH and int(y) < plot for x, y in found)


@pytest.mark.parametrize(
    ("lines", "log", "why"),
    [
        ({}, False, "1 to 6 lines"),
        ({"a": []}, False, "each with points"),
        ({str(n): [(1, 1)] for n in range(7)}, False, "1 to 6 lines"),
        ({"a": [(1, 0)]}, True, "numbers above 0, not 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(lines, log, why):
    """The sentence says what is needed."""
    with pytest.raises(ValueError, match=why):
        curves("t", "x", "y", lines, log=log)
