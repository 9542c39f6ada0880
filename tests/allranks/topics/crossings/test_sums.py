"""The closed forms count what the schedules count, and lines cross where they say."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.base.paths import ROOT
from allranks.topics.collectives import costs
from allranks.topics.crossings.sums import all_reduce, crossing, seconds, winners
from allranks.topics.links.sums import LINKS, named


@pytest.mark.parametrize("name", ["naive", "tree", "ring"])
def test_the_formulas_count_the_schedules_messages(name):
    for world_size in range(2, 18):
        counted = costs.cost("all_reduce", name, world_size)
        assert all_reduce(world_size)[name] == pytest.approx(counted)


def test_halving_costs_what_the_script_counted():
    """Its steps and bytes on four ranks are those that real messages had."""
    command = "torchrun-standalone-nproc-per-node-4-scripts-ch7_collectives.py.txt"
    run = (ROOT / "book" / "_runs" / command).read_text("utf8")
    for name in "tree", "ring", "halving":
        found = re.search(rf"{name}\b.*?(\d+) steps.*?([\d.]+) n\b", run)
        steps, share = int(found[1]), float(found[2])
        assert all_reduce(4)[name] == pytest.approx((steps, share)), name


def test_halving_needs_a_power_of_two():
    have = [size for size in range(2, 70) if "halving" in all_reduce(size)]
    assert have == [2, 4, 8, 16, 32, 64]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 1024), st.floats(1e-6, 1e-2), st.floats(1e6, 1e12))
def test_a_tree_wins_below_the_crossing_and_a_ring_above(size, alpha, bandwidth):
    ways = all_reduce(size)
    tree, ring = ways["tree"], ways["ring"]
    n = crossing(tree, ring, alpha, bandwidth)
    assert n > 0
    for factor, earlier in (0.9, tree), (1.1, ring):
        later = tree if earlier is ring else ring
        times = [seconds(way, factor * n, alpha, bandwidth) for way in (earlier, later)]
        assert times[0] < times[1]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 1024), st.floats(0, 1e-2), st.floats(1e6, 1e12), st.data())
def test_from_each_winners_size_on_nothing_is_faster(size, alpha, bandwidth, data):
    """Between two of the sizes, the one named is as fast as any other."""
    ways, least, most = all_reduce(size), 1000, 10**10
    found = winners(ways, least, most, alpha, bandwidth)
    starts = [start for _, start in found]
    assert starts[0] == least and starts == sorted(starts)
    for (name, start), end in zip(found, [*starts[1:], most], strict=True):
        n = start + data.draw(st.floats(0, 1)) * (end - start)
        times = [seconds(way, n, alpha, bandwidth) for way in ways.values()]
        assert seconds(ways[name], n, alpha, bandwidth) <= min(times) * (1 + 1e-9)


def test_every_link_is_found_by_its_numbers():
    assert [named(*link[1:]) for link in LINKS.values()] == [
        link.label for link in LINKS.values()
    ]
    assert named(1, 1) == ""


def test_the_pages_table_is_the_books():
    """The chapter lists each link with its numbers."""
    page = (ROOT / "book" / "ch7_collectives.md").read_text("utf8")
    rows = re.findall(
        r"^\| `(\w+)` \| (.+) \| ([\d.]+) µs \| ([\d.]+) GB/s \|$", page, re.M
    )
    found = {key: (label, float(a), float(b)) for key, label, a, b in rows}
    assert found == {key: tuple(link) for key, link in LINKS.items()}
