"""An exchange shows each rank's values before and after a collective."""

import doctest
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks.base.paths import ROOT
from allranks.base.picture import Picture
from allranks.base.svg import RANK_COLORS
from allranks.topics.collectives import picture
from allranks.topics.collectives.picture import exchange, tile
from tests.allranks.drawings import SVG, drawings, drawn, title

rows = st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=1, max_size=4)


def test_the_examples_in_the_docstrings_hold():
    """The examples in the docstrings give what they say."""
    assert doctest.testmod(picture).attempted >= 1
    assert doctest.testmod(picture).failed == 0


@given(st.lists(st.tuples(rows, rows), min_size=1, max_size=5))
def test_svg_label_and_text_hold_the_same_values(held):
    """The SVG, its label and the text contain the same values."""
    before, after = zip(*held, strict=True)
    drawing = exchange("a < b & c, a title of some length", before, after)
    expected = [
        "–" if v is None else f"{v}"
        for rows in (before, after)
        for r in rows
        for v in r
    ]
    said = " ".join(drawing.text.split())
    for root, boxes in map(drawn, [drawing] * 2, range(len(drawings(drawing)))):
        assert [box[0] for box in boxes] == expected
        assert root.get("aria-label").replace(";", "") == said
    lines = drawing.text.splitlines()
    assert lines[0] == title(drawing) == "a < b & c, a title of some length"
    for rank, (old, new) in enumerate(held):
        texts = ["–" if v is None else f"{v}" for v in old + new]
        assert lines[2 + rank].split() == ["rank", f"{rank}", *texts]


def test_a_value_keeps_its_ranks_color_and_a_sum_bears_all():
    """A value keeps the color of its rank; a new one has a band for each source."""
    _, boxes = drawn(exchange("all_reduce", [1, 10, None], [11, 10, 1]))
    assert boxes == [
        ("1", RANK_COLORS[0], RANK_COLORS[0], []),
        ("10", RANK_COLORS[1], RANK_COLORS[1], []),
        ("–", "none", "currentColor", []),
        ("11", "none", "currentColor", RANK_COLORS[:3]),
        ("10", RANK_COLORS[1], RANK_COLORS[1], []),
        ("1", RANK_COLORS[0], RANK_COLORS[0], []),
    ]
    _, boxes = drawn(
        exchange("partial", [1, 10, 100], [110, 1, 1], lambda text: [1, 2])
    )
    assert boxes[3] == ("110", "none", "currentColor", RANK_COLORS[1:3])


def test_a_sum_that_looks_like_a_ranks_own_number_bears_all_ranks():
    """0 + 1 + 2 + 3 is 6, which rank 2 held before: each 6 keeps its own colors."""
    partial = [[0, 4], [1, 5], [2, 6], [3, 7]]
    _, boxes = drawn(exchange("by inputs", partial, [[6, 22]] * 4, made_from=range(4)))
    before, after = boxes[:8], boxes[8:]
    assert [box[1] for box in before] == [
        RANK_COLORS[r] for r in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    assert (
        after
        == [(text, "none", "currentColor", RANK_COLORS[:4]) for text in ("6", "22")] * 4
    )


def test_the_notebook_on_split_layers_shows_its_sums_as_sums():
    """No sum of 6 has the color of rank 2, which brought another 6."""
    notebook = json.loads(
        (ROOT / "notebooks/ch6_model_parallel.ipynb").read_text("utf8")
    )
    shown = [
        "".join(output["data"]["text/html"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "split by its inputs" in "".join(output.get("data", {}).get("text/html", ""))
    ]
    (html,) = shown
    _, boxes = drawn(Picture(html, ""))
    after = boxes[8:]
    assert {box[0] for box in after} == {"6", "22"}
    assert all(box[3] == RANK_COLORS[:4] for box in after)


def test_equal_numbers_before_keep_the_colors_of_their_ranks():
    """Two ranks may hold the same, and no sum is guessed where a function knows."""
    _, boxes = drawn(exchange("x", [5, 5], [5, 5], lambda text: [0]))
    assert [box[1] for box in boxes] == [RANK_COLORS[r] for r in (0, 1, 0, 0)]


def test_the_tiles_of_a_gallery_have_one_size():
    """However much a rank holds, all boxes of all tiles are in the same places."""
    few = tile("broadcast", [1, 2, 3, 4], [3] * 4, lambda text: [2])
    many = tile("all_to_all", [[1000] * 4] * 4, [[4000] * 4] * 4)
    assert few.text == exchange("broadcast", [1, 2, 3, 4], [3] * 4).text
    sizes, places = [], []
    for one in few, many:
        (root,) = drawings(one)
        rects = [r for r in root.iter(f"{SVG}rect") if float(r.get("height")) > 20]
        sizes.append((root.get("viewBox"), {r.get("width") for r in rects}))
        places.append({(r.get("x"), r.get("y")) for r in rects})
    assert sizes[0] == sizes[1] and len(sizes[0][1]) == 1
    assert places[0] < places[1]


def test_tensors_and_floats_are_read_like_numbers():
    """Values may come straight from a run, as tensors or lists."""
    one = exchange("x", [torch.tensor(2.0), [0.5]], [torch.tensor([1, 2]), None])
    assert one.text.splitlines()[2:] == ["rank 0  2       1 2", "rank 1  0.5     –"]


@pytest.mark.parametrize(("before", "after"), [([], []), ([1], [1, 2])])
def test_before_and_after_have_the_same_ranks(before, after):
    """An exchange with fewer or more ranks afterwards is refused."""
    with pytest.raises(ValueError, match=r"ranks before, \d ranks after"):
        exchange("x", before, after)
