"""The front page's map has every chapter, in order, with times computed from pages."""

import doctest
import json
import re

import pytest

from allranks.paths import ROOT
from book._ext.chapters import chapter_map

PARTS = chapter_map.read(ROOT)
NUMBERED = [one for chapters in PARTS.values() for one in chapters if one.number]


def test_chapters_are_numbered_as_their_files_are():
    """Sphinx counts chapters from 1, and the file names must agree: 1, 2, 3, ..."""
    first = next(iter(PARTS.values()))
    assert [one.number for one in first] == [str(n + 1) for n in range(len(first))]
    assert len(first) >= 6


def test_only_parts_are_numbered():
    """An appendix has no number, neither in the table of contents nor in its name."""
    for caption, chapters in PARTS.items():
        assert all(bool(one.number) == caption.startswith("Part") for one in chapters)


@pytest.fixture(scope="module")
def svg():
    """Return the figure, with page names as links."""
    return chapter_map.draw(PARTS, lambda name: f"{name}.html")


def test_every_chapter_is_a_link_with_a_name(svg):
    """The keyboard reaches every chapter, and a screen reader says title and times."""
    links = re.findall(r'<a href="([^"]+)" aria-label="([^"]+)">', svg)
    pages = {f"{one.name}.html": one for chapters in PARTS.values() for one in chapters}
    assert [link for link, _ in links] == list(pages)
    for link, name in links:
        assert pages[link].title in name
        assert not pages[link].number or pages[link].times in name
    assert 'role="img"' not in svg, "an image hides the links inside of it"


def test_an_arrow_for_each_chapter_that_refers_to_an_earlier_one(svg):
    """Chapter 5 builds on chapter 4, for example, and no arrow leads backwards."""
    needs = {one.number: one.builds_on for one in NUMBERED}
    assert "ch4" in needs["5"]
    for number, earlier in needs.items():
        assert all(int(name.removeprefix("ch")) < int(number) for name in earlier)
    assert svg.count("<path") == sum(map(len, needs.values()))


def test_nothing_is_drawn_outside_of_the_figure(svg):
    """Arrows stay inside the figure, and titles inside their boxes."""
    width = chapter_map.WIDTH
    assert all(int(x) < width for x in re.findall(r"H(\d+)V", svg))
    for one in NUMBERED:
        assert 36 + 8 * len(one.title) < chapter_map.BOX, one.title


def test_times_follow_from_the_pages(tmp_path):
    """Prose counts, but code, front matter and directives don't."""
    prose = "word " * 399
    page = f"---\nmeta: {prose}\n---\n# T\n\n{prose}\n\n```{{run}} x\n{prose}\n```\n"
    assert chapter_map.reading_minutes(page) == 2
    assert chapter_map.reading_minutes(f"{page}\nlast words here") == 3
    notebook = tmp_path / "a.ipynb"
    assert chapter_map.notebook_minutes(notebook) == 0
    cells = [{"source": ["**Predict**: a\n", "**Predict**: b"]}, {"source": "x"}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert chapter_map.notebook_minutes(notebook) == 4


def test_the_note_says_how(svg):
    note = chapter_map.explain(PARTS)
    assert "200 words" in note
    assert "2 minutes" in note
    assert f"All {len(NUMBERED)} chapters" in note


def test_the_front_page_shows_the_map_and_types_no_time():
    page = (ROOT / "book" / "intro.md").read_text("utf8")
    assert "{chapter-map}" in page
    assert not re.search(r"\b\d+ (?:min|h|hours?)\b", page)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(chapter_map)
    assert result.attempted
    assert not result.failed
