"""Each chapter opens with its own picture, drawn for a column and for a phone.

Whether a picture says what its chapter computes, the chapter's own test says.
"""

import doctest
import re
from importlib import import_module
from xml.etree import ElementTree

import pytest

from allranks import openings
from allranks.base.paths import ROOT
from allranks.openings import sheet
from book._ext.chapters.chapter_map import SECTION

NARROW, WIDE = True, False


def texts(name: str, narrow: bool = WIDE) -> list[str]:
    """Return the texts of a picture."""
    return re.findall(r"<text[^>]*>([^<]*)", openings.opening(name, narrow))


@pytest.mark.parametrize("name", openings.NAMES)
def test_a_picture_is_drawn_for_a_column_and_for_a_phone(name):
    """Both have a viewBox and a text for screen readers, and letters of one size."""
    alt = import_module(f"allranks.openings.{name}").ALT
    assert len(alt) > 100
    for narrow, width in ((WIDE, sheet.WIDE), (NARROW, sheet.NARROW)):
        svg = openings.opening(name, narrow)
        assert f'viewBox="-1 -1 {width + 2} ' in svg
        assert 'role="img"' in svg and svg.count("aria-label=") == 1
        sizes = {int(size) for size in re.findall(r'font-size="(\d+)"', svg)}
        assert min(sizes) >= sheet.SIZE
    joined = [re.sub(r"\W|\d", "", "".join(texts(name, n))) for n in (WIDE, NARROW)]
    assert len(joined[0]) > 60
    assert {*texts(name)} & {*texts(name, NARROW)}


def test_every_chapter_opens_with_its_own_picture_before_any_code():
    """It stands right below the title, and no picture is left over."""
    used = []
    for path in sorted(ROOT.glob("book/*.md")):
        page = path.read_text("utf8")
        found = re.findall(r"^# .+\n\n```\{opening\} (\w+)\n\S", page, re.MULTILINE)
        opens = path.stem[:2] == "ch" and not SECTION.fullmatch(path.stem)
        assert found == ([path.stem] if found or opens else [])
        used += found
    assert used == sorted(openings.NAMES)


@pytest.mark.parametrize("name", openings.NAMES)
def test_a_thumbnail_has_the_shapes_and_no_words(name):
    """It is cropped to the drawing's boxes and lines, and none is lost."""
    svg, whole = openings.thumbnail(name), openings.opening(name)
    assert "<text" not in svg and "aria-label" not in svg
    assert svg.count("<path") == whole.count("<path")
    assert svg.count("<rect") >= whole.count("<rect") - 3  # words on yellow
    left, top, width, height = map(
        float, re.search(r'viewBox="([^"]+)"', svg)[1].split()
    )
    assert left >= -3 and top >= -3
    assert sheet.WIDE / 3 < width <= sheet.WIDE + 4 and height > 60
    ElementTree.fromstring(svg)


def test_another_name_is_refused():
    with pytest.raises(LookupError, match="no opening ch9_x: there are app_rehearse"):
        openings.opening("ch9_x")


def test_examples_in_docstrings_hold():
    result = doctest.testmod(sheet)
    assert result.attempted and not result.failed
