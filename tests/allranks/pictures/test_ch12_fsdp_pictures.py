"""Titles fit the numbers, and a triangle has the sides that were measured."""

import re

import pytest

from allranks.openings import ch12_fsdp as opening
from allranks.pictures import ch12_fsdp
from allranks.topics.sharding.sums import Precision, held
from tests.allranks.pictures.drawing import refuses


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch12_fsdp.stages", r"(ZeRO-2 .*sent) [\d.]+", r"\1 5.000"),
        ("ch12_fsdp.order", r"(one unit .*\n.*\]) +G", r"\1 G G"),
        ("ch12_fsdp.timeline", r"(ahead: .* waits) [\d.]+", r"\1 99999.0"),
        ("ch12_fsdp.off_course", r"(cut .*as long,) \d+%", r"\1 2%"),
        ("ch12_fsdp.legs", "windows next: True", "windows next: False"),
        ("ch12_fsdp.cases", r"(scale ignored +)\S+ off", r"\1 0e+00 off"),
        ("ch12_fsdp.moved", r"(FULL_SHARD .*now .*sends) \d+", r"\1 1"),
    ],
)
def test_numbers_that_contradict_the_title_are_refused(name, old, new):
    """A title is a claim, so another result needs another title."""
    refuses(name, old, new)


def test_the_opening_has_the_bytes_of_the_sums():
    """Those of float32 and Adam, on four ranks."""
    for cut in range(4):
        law = sum(held(cut, 1.0, opening.RANKS, Precision(4, 4, 8)))
        assert opening.held(cut) == law


@pytest.mark.parametrize("apart", [50, 90])
def test_the_steps_of_muon_make_a_triangle(apart):
    """The third side, between the ends, is as long as measured."""
    line = "[rank 0/2] {} weights 1e-2 off: steps {} times as long, {}% off course\n"
    output = line.format("dealt out", "1.00", 0) + line.format("cut", "1.05", apart)
    html = ch12_fsdp.off_course(output).html
    ends = re.findall(r'd="M0 ([\d.]+)L([\d.]+) ([\d.]+)M', html)[:2]
    (base, x, y), (_, x2, y2) = [tuple(map(float, end)) for end in ends]
    first, second = (x, base - y), (x2, base - y2)
    length = sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5
    assert first[1] == 0
    assert length / first[0] == pytest.approx(apart / 100, rel=0.02)
