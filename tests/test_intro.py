"""The front page's map has every chapter, in order, with times computed from pages."""

import doctest
import json
import re

import pytest
from bs4 import BeautifulSoup
from docutils import nodes

from allranks import openings
from allranks.base.paths import ROOT
from book._ext.chapters import chapter_map, map_cards

PARTS = chapter_map.read(ROOT)
NUMBERED = [one for chapters in PARTS.values() for one in chapters if one.number]


def test_chapters_are_numbered_as_their_files_are():
    """Sphinx counts chapters from 1, and the file names must agree: 1, 2, 3, ..."""
    first = next(all_ for caption, all_ in PARTS.items() if caption[:4] == "Part")
    assert [one.number for one in first] == [str(n + 1) for n in range(len(first))]
    assert len(first) >= 6


def test_only_parts_are_numbered():
    """An appendix has no number, neither in the table of contents nor in its name."""
    for caption, chapters in PARTS.items():
        assert all(bool(one.number) == caption.startswith("Part") for one in chapters)


def test_no_part_has_the_name_of_its_only_page():
    """A caption says when to look there, and not its page's name again."""
    assert [
        cap for cap, all_ in PARTS.items() if [one.title for one in all_] == [cap]
    ] == []


MINUTES = {"page": 30, "quizzes": 9, "notebook": 40, "exercises": 50}


@pytest.fixture(scope="module")
def cards():
    """Return what the map shows of each page."""
    return {
        part: [map_cards.card(ROOT, one, MINUTES) for one in all_]
        for part, all_ in PARTS.items()
    }


@pytest.fixture(scope="module")
def html(cards):
    """Return the map, with page names as links."""
    return map_cards.draw(cards, lambda name: f"{name}.html")


def test_every_page_is_a_link_with_its_times(html):
    """Each card has one link, in the order of the book, and chapters have times."""
    tree = BeautifulSoup(html, "html.parser")
    pages = [one for chapters in PARTS.values() for one in chapters]
    links = [f"{one.name}.html" for one in pages]
    assert [a["href"] for a in tree("a")] == links
    for one, card in zip(pages, tree.select(".map-card"), strict=True):
        assert one.title in card.a.get_text()
        times = "page 39 min, notebook 40 min, exercises 50 min"
        assert not one.number or times in card.get_text()


def test_a_card_says_what_its_page_promises(cards):
    """The sentence stands on the page only, and a page without one has its summary."""
    for one in [one for part in cards.values() for one in part]:
        page = (ROOT / "book" / f"{one.chapter.name}.md").read_text("utf8")
        goal = re.sub(r"<[^>]+>", "", one.goal)[:30].rstrip(".")
        assert len(goal) > 10, one.chapter.name
        promised = "After this page" in page
        source = page.partition("**After this page**")[2] if promised else page
        plain = re.sub(r"[*`]", "", " ".join(source.split())).replace("&", "&amp;")
        assert goal in plain, one.chapter.name
        assert promised or not one.chapter.number


def test_a_chapter_shows_its_opening_and_no_color_of_its_own(cards, html):
    """The picture is silent, since its card's text names it; a color is a rank's."""
    tree = BeautifulSoup(html, "html.parser")
    drawn = [card for card in tree.select(".map-card") if card.svg]
    names = [card.a["href"].removesuffix(".html") for card in drawn]
    assert {one.name for one in NUMBERED} <= {*names} == {*openings.NAMES}
    for card in drawn:
        assert card.svg["aria-hidden"] == "true" and not card.svg.select("text")
        assert len(card.svg(["rect", "path"])) > 5
    assert not any("style" in card.attrs for card in tree.select(".map-card"))
    assert max(len(one.goal.split()) for part in cards.values() for one in part) <= 20


def test_cards_begin_with_the_verb_and_the_heading_says_the_rest_once(html):
    """You'll be able to: tell, load, start ..."""
    above = (ROOT / "book" / "intro.md").read_text("utf8").partition("{chapter-map}")[0]
    assert above.count("you'll be able to") == 1
    tree = BeautifulSoup(html, "html.parser")
    goals = [goal.get_text() for goal in tree.select(".map-goal")]
    assert len(goals) > 10
    assert [goal for goal in goals if re.match(r"[a-z]|After |You ", goal)] == []


def test_a_line_for_each_chapter_that_builds_on_an_earlier_one(html):
    """Chapter 5 builds on chapter 4, for example, and no line leads backwards."""
    needs = {one.number: one.builds_on for one in NUMBERED}
    assert "ch4" in needs["5"]
    for number, earlier in needs.items():
        assert all(int(name.removeprefix("ch")) < int(number) for name in earlier)
    shown = map_cards.nearest(NUMBERED)
    tree = BeautifulSoup(html, "html.parser")
    drawn = [
        number.find_parent(class_="map-card") for number in tree(class_="map-number")
    ]
    for one, card in zip(NUMBERED, drawn, strict=True):
        names = " and ".join(n.removeprefix("ch") for n in shown[f"ch{one.number}"])
        assert ("builds on" in card.get_text()) is bool(names)
        assert names in card.get_text()
    lines = len(tree.select(".map-strip path"))
    beside = len(tree.select(".map-follows"))
    afar = [int(tag.get_text()[5:]) for tag in tree.select(".map-from")]
    assert lines and beside and afar and max(afar) < 7  # from the part before
    assert lines + beside + len(afar) == sum(map(len, shown.values()))


def test_only_the_nearest_needs_are_shown():
    """What follows from another need is left out, but nothing else."""
    chain = [
        chapter_map.Chapter(f"ch{i}_x", "X", 0, needs)
        for i, needs in enumerate([(), (), ("ch1", "ch2"), ("ch1", "ch3")], 1)
    ]
    shown = {"ch1": [], "ch2": [], "ch3": ["ch1", "ch2"], "ch4": ["ch3"]}
    assert map_cards.nearest(chain) == shown


def test_no_line_lies_on_another(html):
    """Lines start and end at places of their own, and run at heights of their own."""
    strips = [
        re.findall(r'd="M(\d+) 0V([\d.]+)H(\d+)V', strip)
        for strip in html.split("map-strip")[1:]
    ]
    assert max(map(len, strips)) > 1
    for paths in strips:
        ends = [x for start, _, end in paths for x in (start, end)]
        assert len({*ends}) == len(ends)
        assert len({y for _, y, _ in paths}) == len(paths)


def test_times_follow_from_the_notebooks(tmp_path):
    """A notebook takes the longer, the more it asks to predict."""
    notebook = tmp_path / "a.ipynb"
    assert chapter_map.notebook_minutes(notebook) == 0
    cells = [{"source": ["**Predict**: a\n", "**Predict**: b"]}, {"source": "x"}]
    notebook.write_text(json.dumps({"cells": cells}))
    assert chapter_map.notebook_minutes(notebook) == 4


def test_the_note_sums_all_parts():
    """The hours are those of every part of every chapter, and the sheet is linked."""
    made = map_cards.note({"a": MINUTES, "b": MINUTES}, lambda name: f"{name}.html")
    said = "All 2 chapters take about 3 hours, and their exercises another 2."
    assert said in made.astext()
    (sheet,) = made.findall(nodes.reference)
    assert sheet["refuri"] == "app_course.html"


def test_the_front_page_shows_the_map_and_types_no_time():
    page = (ROOT / "book" / "intro.md").read_text("utf8")
    assert "{chapter-map}" in page
    assert not re.search(r"\b\d+ (?:min|h|hours?)\b", page)


def test_examples_in_docstrings_hold():
    result = doctest.testmod(map_cards)
    assert result.attempted
    assert not result.failed
