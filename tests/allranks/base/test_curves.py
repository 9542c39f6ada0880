"""Curves: every number is where its axis says, and impossible ones are refused."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from allranks.base.curves import WIDE, WIDTH, curves

LINES = {"a": [(1, 0.1), (10, 1), (1000, 10)], "b": [(100, 2), (200, 5)]}


SVG = "{http://www.w3.org/2000/svg}"


def drawings(picture):
    """Return the drawings by their width: a logarithmic picture has two."""
    found = re.findall(r"<svg.*?</svg>", picture._repr_html_())
    return {int(svg.get("width")): svg for svg in map(ElementTree.fromstring, found)}


def drawn(picture, name, width=WIDTH):
    """Return the points of a line, as they are drawn."""
    for path in drawings(picture)[width].iter(f"{SVG}path"):
        if path.findtext(f"{SVG}title") == name:
            pairs = re.findall(r"(-?\d+) (-?\d+)", path.get("d"))
            return [(int(x), int(y)) for x, y in pairs]
    raise AssertionError(f"no line {name}")


@pytest.mark.parametrize("width", [WIDTH, WIDE])
def test_equal_factors_are_equal_ways_on_logarithmic_axes(width):
    """From 1 to 10 is half as far as from 10 to 1000; up, each factor of 10 counts."""
    picture = curves("t", "x", "y", LINES, log=True)
    (x1, y1), (x2, y2), (x3, y3) = drawn(picture, "a", width)
    assert 2 * (x2 - x1) == pytest.approx(x3 - x2, abs=2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=2)


def test_equal_differences_are_equal_ways_on_others():
    """A straight line stays one."""
    line = {"a": [(0, 0), (1, 2), (3, 6)]}
    (x1, y1), (x2, y2), (x3, y3) = drawn(curves("t", "x", "y", line), "a")
    assert 2 * (x2 - x1) == pytest.approx(x3 - x2, abs=2)
    assert 2 * (y1 - y2) == pytest.approx(y2 - y3, abs=2)


def test_one_axis_can_be_logarithmic_alone():
    """Across, equal differences are equal ways; up, equal factors are."""
    line = {"a": [(0, 0.1), (1, 1), (3, 10)]}
    points = drawn(curves("t", "x", "y", line, log="y"), "a")
    (x1, y1), (x2, y2), (x3, y3) = points
    assert 2 * (x2 - x1) == pytest.approx(x3 - x2, abs=2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=2)


@pytest.mark.parametrize("log", [False, "y", True])
def test_names_wrap_into_rows_inside_the_drawing(log):
    """Six long names stand above the plot, none outside of the picture's width."""
    lines = {f"a rather long name {n}": [(1, 1), (2, 2)] for n in range(6)}
    picture = curves("t", "x", "y", lines, log=log)
    texts = drawings(picture)[WIDTH].iter(f"{SVG}text")
    found = [text for text in texts if text.text.startswith("a rather long name")]
    assert len({text.get("y") for text in found}) == 6
    plot = min(y for _, y in drawn(picture, next(iter(lines))))
    for text in found:
        assert int(text.get("x")) + 8 * 20 < WIDTH and int(text.get("y")) < plot


@pytest.mark.parametrize("log", ["y", True])
def test_names_at_the_ends_keep_apart(log):
    """Lines that end near one another have their names in their own order, apart."""
    lines = {f"line {n}": [(1, 1), (100, 50 + n)] for n in range(5)}
    lines["short"] = [(1, 1), (10, 5)]
    picture = curves("t", "x", "y", lines, log=log)
    texts = {t.text: t for t in drawings(picture)[WIDE].iter(f"{SVG}text")}
    high = [int(texts[f"line {n}"].get("y")) for n in reversed(range(5))]
    assert all(below - above >= 18 for above, below in itertools.pairwise(high))
    end, _ = drawn(picture, "short", WIDE)[-1]
    assert int(texts["short"].get("x")) == end + 8


def test_names_that_would_lie_on_each_other_stand_above():
    """Two lines end in the middle of the plot, at nearly one height."""
    lines = {"the first": [(1, 1), (10, 5)], "the second": [(1, 1), (20, 5.1)]}
    lines["the third"] = [(1, 1), (1000, 9)]
    picture = curves("t", "x", "y", lines, log=True)
    plot = min(y for _, y in drawn(picture, "the third", WIDE))
    texts = {t.text: t for t in drawings(picture)[WIDE].iter(f"{SVG}text")}
    assert all(int(texts[name].get("y")) < plot for name in lines)
    assert max(x for x, _ in drawn(picture, "the third", WIDE)) == WIDE - 18


def test_a_dot_lies_on_its_line():
    """In both drawings: here in the middle between two points."""
    line = [(1, 1), (100, 100)]
    picture = curves("t", "x", "y", {"a": line}, log=True, dots={"a": (10, 10)})
    for width, drawing in drawings(picture).items():
        (x1, y1), (x2, y2) = drawn(picture, "a", width)
        (dot,) = drawing.iter(f"{SVG}circle")
        assert int(dot.get("cx")) == pytest.approx((x1 + x2) / 2, abs=1)
        assert int(dot.get("cy")) == pytest.approx((y1 + y2) / 2, abs=1)


@pytest.mark.parametrize(
    ("lines", "log", "why"),
    [
        ({}, False, "1 to 6 lines"),
        ({"a": []}, False, "each with points"),
        ({str(n): [(1, 1)] for n in range(7)}, False, "1 to 6 lines"),
        ({"a": [(1, 0)]}, True, "log=True needs numbers above 0, not 0"),
        ({"a": [(0, 1)]}, True, "log=True needs numbers above 0, not 0"),
        ({"a": [(0, 0)]}, "y", "log='y' needs numbers above 0, not 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(lines, log, why):
    """The sentence says what is needed."""
    with pytest.raises(ValueError, match=why):
        curves("t", "x", "y", lines, log=log)
