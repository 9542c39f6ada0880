"""The pictures that open chapters say what the chapters' own code computes."""

import doctest
import re
from importlib import import_module

import pytest

from allranks import openings
from allranks.base.paths import ROOT
from allranks.openings import ch1_environment, ch3_save_load, ch5_ddp, sheet
from allranks.topics.topology.sums import rank_of

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
        assert found == ([path.stem] if found or path.stem[:2] == "ch" else [])
        used += found
    assert used == sorted(openings.NAMES)


def test_another_name_is_refused():
    with pytest.raises(LookupError, match="no opening ch9_x: there are app_rehearse"):
        openings.opening("ch9_x")


def test_five_things_must_match_and_five_are_marked():
    """The list beside the layers explains each number on them, once."""
    numbers = [text for text in texts("ch1_environment") if re.fullmatch(r"\d", text)]
    expected = [f"{i + 1}" for i in range(len(ch1_environment.MATCH))]
    assert sorted(numbers) == sorted(expected * 2)


def test_the_file_holds_what_the_second_script_of_chapter_3_leaves_out_in_turn():
    """Its run loses one piece after another; the picture has as many."""
    (record,) = ROOT.glob("book/_runs/*ch3_resume.py.txt")
    lost = re.findall(r"lost (\w+): off", record.read_text("utf8"))
    assert len(lost) == len(ch3_save_load.FILE)


def test_ranks_are_those_of_the_rule():
    """Two nodes with two processes each."""
    shown = [text for text in texts("ch4_ranks") if text.startswith("rank ")]
    assert shown == [f"rank {rank_of((2, 2), n, i)}" for n in (0, 1) for i in (0, 1)]


def test_bars_average_and_step_as_ddp_does():
    """Gradients differ, their average is in between, and weights stay equal."""
    first, second = ch5_ddp.OWN
    assert first != second
    pairs = zip(first, second, ch5_ddp.AVERAGE, strict=True)
    assert all(2 * mean == a + b for a, b, mean in pairs)
    for _, _, sign, bars in ch5_ddp.STAGES[1:]:
        assert (bars[0] == bars[1]) is (sign == "=")


def test_examples_in_docstrings_hold():
    result = doctest.testmod(sheet)
    assert result.attempted and not result.failed
