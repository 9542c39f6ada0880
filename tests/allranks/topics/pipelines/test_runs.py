"""Torch's schedules, as recorded, do what the arithmetic says."""

import re

import pytest

from allranks import Ranks
from allranks.base.svg import WAITING
from allranks.topics.pipelines import runs
from allranks.topics.pipelines.picture import (
    dense,
    efficiency_plot,
    pack,
    recorded,
    schedule,
    unpack,
)
from allranks.topics.pipelines.schedules import write_orders
from allranks.topics.pipelines.sums import Work, gpipe, one_f_one_b, timetable


@pytest.fixture(scope="module")
def ranks():
    """Yield four ranks for the whole module."""
    with Ranks(4) as ranks:
        yield ranks


def record(*args, **options):
    """Record a pipeline, on a live rank."""
    from allranks.topics.pipelines import runs

    return runs.record(*args, **options)


@pytest.mark.parametrize("count", [4, 6])
def test_torchs_schedules_are_ours(ranks, count):
    """GPipe and 1F1B work in the order that our arithmetic writes down."""
    for name, make in ("gpipe", gpipe), ("1f1b", one_f_one_b):
        by_rank = ranks.run(record, name, count, [0.001] * 4)
        (works,) = runs.join(by_rank)
        assert runs.orders(works) == make(4, count)
        assert min(work.start for work in works) == 0
        assert 0 < runs.efficiency(works, [0.001] * 4) < 1


def test_interleaved_has_two_stages_on_each_rank(ranks):
    by_rank = ranks.run(record, "interleaved1f1b", 4, [0.001] * 8, steps=2)
    for works in runs.join(by_rank):
        assert {(w.rank, w.stage) for w in works} == {(s % 4, s) for s in range(8)}
        assert len(works) == len({work[1:4] for work in works}) == 2 * 4 * 8
        orders = runs.orders(works)
        assert {work.end for work in timetable(orders)}  # no work waits for ever


def test_a_busy_stage_computes(ranks):
    by_rank = ranks.run(record, "gpipe", 2, [0.002] * 4, busy=True)
    (works,) = runs.join(by_rank)
    assert all(work.end > work.start for work in works)


WORKS = timetable(gpipe(2, 2))


def test_the_picture_shows_the_idle_time():
    text = repr(schedule("GPipe", WORKS))
    assert text.splitlines() == [
        "GPipe",
        "rank 0: F0 F1 (3) B0 B1; works 67 % of the time",
        "rank 1: (1) F0 F1 B0 B1; works 67 % of the time",
        "(n) is idle time, in forward passes",
    ]
    html = schedule("A <b>", WORKS)._repr_html_()
    assert "A &lt;b&gt;" in html
    # Wide and narrow, 8 pieces of work, and the 3 times in which a rank waits.
    assert html.count("<rect") == 2 * (8 + 3) and html.count(WAITING) == 2 * 3


def test_a_second_stage_is_marked():
    table = timetable([["F0@0", "F0@1", "B0@1", "B0@0"]])
    assert "rank 0: F0 F0' B0' B0" in repr(schedule("two", table))


def test_what_is_packed_is_unpacked():
    work = Work(3, "B", 12, 7, 0.0201, 0.0403)
    assert unpack(3, pack(work)) == work._replace(start=20.1, end=40.3)
    ranks = {
        f"rank_{r}": ", ".join(pack(w) for w in WORKS if w.rank == r) for r in (0, 1)
    }
    picture = recorded({"title": "GPipe", "forward_ms": 1000.0, "ranks": ranks})
    assert repr(picture) == repr(schedule("GPipe", WORKS))


def test_the_dense_drawing_has_the_same_boxes_and_numbers():
    """Boxes, looks, numbers and bars are the same, in less than half the bytes."""
    orders = write_orders("InterleavedZeroBubble", 4, 12, 2)
    svg = re.search("<svg.*?</svg>", schedule("T", timetable(orders)).html)[0]
    small = dense(svg)
    assert len(small) < len(svg) / 2
    box = r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" ([^>]*)/>'
    found = []
    for d, look in re.findall(r'<path d="([^"]*z)" ([^>]*)/>', small):
        for place in re.findall(r"M(\S+) (\S+?)h(.+?)v(.+?)h-\3z", d):
            found.append((*place, look))
    assert sorted(found) == sorted(re.findall(box, svg)) and found
    assert "currentColor" in found[-1][-1]
    texts, numbers = re.compile(r'<text x="([^"]*)" y="(\d+)" [^>]*>([^<]*)<'), []
    for places, y, words in texts.findall(small):
        row = list(words) if " " in places else [words]
        numbers += [(x, y, word) for x, word in zip(places.split(), row, strict=True)]
    assert sorted(numbers) == sorted(texts.findall(svg))


def test_the_plot_holds_its_figures():
    data = {"title": "T", "num_stages": 4, "m1": {"sleep": 0.24, "busy": 0.21}}
    picture = efficiency_plot(data | {"m16": {"sleep": 0.79, "busy": 0.4}})
    assert [line.split() for line in repr(picture).splitlines()[2:]] == [
        ["1", "0.24", "0.21", "0.25"],
        ["16", "0.79", "0.40", "0.84"],
    ]
    assert "aria-label" in picture._repr_html_()
