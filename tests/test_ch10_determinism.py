"""Lanes that are added up in a tree give the same bits on any number of ranks."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allranks import Ranks, RanksError
from scripts import ch10_determinism as script
from tests.ranks import run_script

TRAIN = """
import torch.distributed as dist
from scripts import ch10_determinism as script

before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
script.settle()
args = script.parse_args(["--steps=4", f"--seed={seed}", "--batch-size=32"])
own = args.lanes // world_size
one = [script.train(args, torch.device("cpu"), lanes) for lanes in (1, args.lanes)]
plain = script.train(args, torch.device("cpu"), 1, dist.all_reduce)
tree = script.train(args, torch.device("cpu"), own, script.halving)
torch.use_deterministic_algorithms(before[0])
torch.set_num_threads(before[1])
one, plain, tree
"""
LINE = re.compile(r"\] (.+): repeats: (\w+), as one process: (\w+), ")


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_tree_has_the_bits_of_one_process_and_all_reduce_has_not(world_size):
    """All ranks end with them; the plain way is near, but not equal."""
    with Ranks(world_size) as ranks:
        ranks.push({"seed": 3})
        found = ranks.run(TRAIN, quiet=True)
    for (whole, lanes), plain, tree in found:
        assert torch.equal(tree, lanes)
        assert torch.equal(tree, found[0][2])
        assert not torch.equal(plain, whole)
        torch.testing.assert_close(plain, whole)
        torch.testing.assert_close(lanes, whole)


def test_on_two_ranks_all_reduce_of_lanes_has_the_bits_too():
    """There is one addition, and a + b = b + a: so says the page."""
    flags = "--steps", "4", "--samples", "300"
    *lines, _ = run_script("ch10_determinism", 2, *flags)[0]
    found = [LINE.search(line).groups() for line in lines]
    assert [same for _, _, same in found] == ["False", "True", "True"]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=16, max_size=16),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_a_tree_over_ranks_of_trees_over_lanes_is_one_tree(terms, world_size):
    """Neighbors first, in both: so it does not matter where ranks are cut."""
    whole = torch.tensor(terms)[:, None]
    parts = torch.stack([script.in_pairs(part) for part in whole.chunk(world_size)])
    assert torch.equal(script.in_pairs(parts), script.in_pairs(whole))


def test_the_script_compares_bits_and_counts_bytes():
    """On four ranks only the tree has one process's bits, for the ring's bytes."""
    flags = "--steps", "4", "--samples", "300"
    *lines, last = run_script("ch10_determinism", 4, *flags)[0]
    assert [LINE.search(line).groups() for line in lines] == [
        ("1 pass, all_reduce", "True", "False"),
        ("2 lanes, all_reduce", "True", "False"),
        ("2 lanes, in a tree", "True", "True"),
    ]
    assert last.endswith("the tree sends 1.5 n a step, a ring 1.5 n")


@pytest.mark.parametrize(
    "flag, why",
    [
        ("--lanes=6", "--lanes 6: must be a power of two"),
        ("--batch-size=12", "--batch-size 12: must be a multiple of --lanes, 8"),
    ],
)
def test_lanes_that_have_no_tree_are_refused(flag, why):
    with pytest.raises(SystemExit, match=why):
        script.parse_args([flag])


@pytest.mark.parametrize(
    "num, flag, why",
    [
        (3, "--steps=1", "3 ranks: must be a power of two, and at most --lanes, 8"),
        (2, "--lanes=1", "2 ranks: must be a power of two, and at most --lanes, 1"),
        (2, "--lr=1e38", "--lr 1e+38: must be 1e-30 to 1e+30"),
    ],
)
def test_ranks_that_have_no_tree_and_a_rate_too_high_are_refused(num, flag, why):
    with pytest.raises(RanksError, match=re.escape(why)):
        run_script("ch10_determinism", num, flag)
