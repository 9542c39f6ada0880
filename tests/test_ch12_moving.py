"""FSDP1, ZeroRedundancyOptimizer and what FSDP2 puts in their place: one training."""

import re

import pytest

from allranks import Ranks
from scripts import ch12_moving
from tests.ranks import run_on

NUM = 3 * (12 * 12 + 12)  # numbers of 4 bytes in the script's net
LINE = r"\] (\S.*?) +(\S+) off, sends (\d+) B; now (\S+) off, sends (\d+) B$"


@pytest.fixture(scope="module", params=[2, 4], ids="W={}".format)
def lines(request):
    """Return (world size, {row: (off, bytes, off, bytes)}), as the script prints it."""
    with Ranks(request.param) as ranks:
        printed = run_on(ranks, "ch12_moving")[0]
    rows = [re.search(LINE, line).groups() for line in printed]
    return request.param, {name: tuple(map(float, rest)) for name, *rest in rows}


def test_each_row_trains_what_one_process_does(lines):
    """Old and new, clipped, and with parts of a step; in float32, as FSDP1 clips."""
    size, rows = lines
    assert len(rows) == 6 + (size == 4)
    for old, _, new, _ in rows.values():
        assert old < 1e-6 and new < 1e-6


def test_the_bytes_are_those_of_the_formulas(lines):
    """In units of what a ring sends of all weights: (W - 1) / W of 4 bytes each."""
    size, rows = lines
    unit = 4 * NUM * (size - 1) / size
    sent = {name: (a / unit, b / unit) for name, (_, a, _, b) in rows.items()}
    wanted = {
        "NO_SHARD": (2, 2),
        "FULL_SHARD": (3, 3),
        "SHARD_GRAD_OP": (2, 2),
        "ZeroRedundancyOptimizer": (3, 2),
        "FULL_SHARD, 2 batches": (5, 5),
        "SHARD_GRAD_OP, 2 batches": (2, 3),  # no_sync keeps the weights
    }
    if size == 4:  # two groups of two: 3 of a half, and all_reduce of a half
        inside, across = 3 / 2, 2 / 2 / 2
        wanted["HYBRID_SHARD"] = 2 * ((inside + across) / (3 / 4),)
    assert sent == {
        name: pytest.approx(both, abs=0.01) for name, both in wanted.items()
    }


def test_impossible_flags_are_refused():
    with pytest.raises(SystemExit, match=r"^--steps 0: must be 1 to 65536$"):
        ch12_moving.parse_args(["--steps=0"])
