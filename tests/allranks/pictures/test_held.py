"""A picture says the same in its SVG as in text, and nothing by colour alone."""

import doctest
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html import unescape

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks.pictures import cluster, exchange, table
from allranks.pictures import held as pictures
from allranks.pictures.svg import HUES, RANK_COLORS

SVG = "{http://www.w3.org/2000/svg}"
rows = st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=1, max_size=4)


def styles(element):
    """Return an element's CSS as a dict."""
    pairs = (pair.split(":") for pair in element.get("style", "").split(";") if pair)
    return {name: value for name, value in pairs}


def drawings(picture):
    """Return the SVG for a column, and the one for a phone if there is another."""
    found = re.findall("<svg.*?</svg>", picture.html, re.DOTALL)
    return [ElementTree.fromstring(svg) for svg in found]


def title(picture):
    """Return what stands above a picture."""
    return unescape(re.search("<figcaption><b>(.*?)</b>", picture.html)[1])


def drawn(picture, which=0):
    """Return a drawing's root, and its boxes as (text, fill, stroke, bands)."""
    root = drawings(picture)[which]
    boxes = []
    for rect in root.iter(f"{SVG}rect"):
        x, y, width, height = (
            float(rect.get(k)) for k in ("x", "y", "width", "height")
        )
        if height < 20:
            boxes[-1][3].append(styles(rect)["fill"])
            continue
        inside = [
            text.text
            for text in root.iter(f"{SVG}text")
            if x < float(text.get("x")) < x + width
            and y < float(text.get("y")) < y + height
            and text.get("text-anchor") == "middle"
        ]
        style = styles(rect)
        boxes.append((" ".join(inside), style.get("fill"), style.get("stroke"), []))
    return root, boxes


def test_the_examples_in_the_docstrings_hold():
    """The examples in the docstrings give what they say."""
    assert doctest.testmod(pictures).attempted >= 2
    assert doctest.testmod(pictures).failed == 0


@given(st.lists(st.tuples(rows, rows), min_size=1, max_size=5))
def test_svg_label_and_text_hold_the_same_values(held):
    """The SVG, its label and the text contain the same values."""
    before, after = zip(*held, strict=True)
    picture = exchange("a < b & c, a title of some length", before, after)
    expected = [
        "–" if v is None else f"{v}"
        for rows in (before, after)
        for r in rows
        for v in r
    ]
    said = " ".join(picture.text.split())
    for root, boxes in map(drawn, [picture] * 2, range(len(drawings(picture)))):
        assert [box[0] for box in boxes] == expected
        assert root.get("aria-label").replace(";", "") == said
    lines = picture.text.splitlines()
    assert lines[0] == title(picture) == "a < b & c, a title of some length"
    for rank, (old, new) in enumerate(held):
        texts = ["–" if v is None else f"{v}" for v in old + new]
        assert lines[2 + rank].split() == ["rank", f"{rank}", *texts]


def test_a_value_keeps_its_ranks_colour_and_a_sum_bears_all():
    """A value keeps the colour of its rank; a new one has a band for each source."""
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


def test_tensors_and_floats_are_read_like_numbers():
    """Values may come straight from a run, as tensors or lists."""
    one = exchange("x", [torch.tensor(2.0), [0.5]], [torch.tensor([1, 2]), None])
    assert one.text.splitlines()[2:] == ["rank 0  2       1 2", "rank 1  0.5     –"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_a_cluster_shows_every_gpu_once(nodes, gpus):
    """Each GPU shows the one rank that uses it, or the word idle."""
    if max(nodes) > gpus:
        with pytest.raises(ValueError, match="each process needs its own"):
            cluster(nodes, gpus)
        return
    picture = cluster(nodes, gpus)
    _, boxes = drawn(picture)
    texts = [box[0] for box in boxes if box[0].startswith(("rank", "idle"))]
    assert len([t for t in texts if t == "idle"]) == gpus * len(nodes) - sum(nodes)
    ranks = [t for t in texts if t.startswith("rank")]
    locals_ = [local for size in nodes for local in range(size)]
    assert ranks == [f"rank {r} local {i}" for r, i in enumerate(locals_)]
    said = re.findall(r": rank ([0-9–]+), local", picture.text)
    spans = [[int(n) for n in span.split("–")] for span in said]
    assert [i for s in spans for i in range(s[0], s[-1] + 1)] == list(range(sum(nodes)))


@pytest.mark.parametrize(
    "picture",
    [exchange("all_to_all", [[1111] * 4] * 4, [[2222] * 4] * 4), cluster((8,) * 3, 16)],
    ids=["exchange", "cluster"],
)
def test_a_picture_fits_a_phone_and_any_theme(picture):
    """At a width of 364, letters have 11 pixels or more, in the colour of the page."""
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


def test_colours_are_constant_and_differ():
    """Ranks 0 to 7 have eight different colours, and rank 8 has the first again."""
    assert len(set(HUES)) == len(set(RANK_COLORS)) == 8
    assert drawn(cluster((9,), 9))[1][9][1] == RANK_COLORS[0]
    for rank, color in enumerate(RANK_COLORS):  # its name in the style sheet
        assert color.startswith(f"var(--rank-{rank}, #")


@pytest.mark.parametrize(("before", "after"), [([], []), ([1], [1, 2])])
def test_before_and_after_have_the_same_ranks(before, after):
    """An exchange with fewer or more ranks afterwards is refused."""
    with pytest.raises(ValueError, match=r"ranks before, \d ranks after"):
        exchange("x", before, after)
