"""Only padding with nothing trains as one process that reads what all ranks read."""

import pytest
import torch

from allranks import Ranks, RanksError
from scripts import ch9_uneven as script
from tests import shown
from tests.ranks import run_on

RUN = """
from scripts import ch9_uneven as script

args = script.parse_args(flags)
mine = script.batches_of(rank, args.files, args.batch_size)
device = torch.device("cpu")
batches = script.even_out(way, mine, device)
weights = script.train(args, way, batches, device)
import gc
gc.collect()
len(batches), sum(len(y) for _, y in batches), weights
"""
FLAGS = ["--files=1", "--batch-size=7", "--seed=3"]


def union(world_size):
    """Return what all ranks read together, in each step."""
    args = script.parse_args(FLAGS)
    every = [
        script.batches_of(r, args.files, args.batch_size) for r in range(world_size)
    ]
    steps = max(map(len, every))
    some = [[b[t] for b in every if t < len(b)] for t in range(steps)]
    return [tuple(map(torch.cat, zip(*step, strict=True))) for step in some]


@pytest.fixture(scope="module")
def crews():
    """Yield groups of one, two and three live ranks."""
    with Ranks(1) as one, Ranks(2) as two, Ranks(3) as three:
        yield {1: one, 2: two, 3: three}


def run(ranks, way):
    """Train on live ranks in one of the ways: each rank's steps, samples, weights."""
    ranks.push({"flags": FLAGS, "way": way})
    return list(zip(*ranks.run(RUN, quiet=True), strict=True))


@pytest.fixture(scope="module")
def truth(crews):
    """Return the weights of one process that reads what all ranks read."""

    def train(flags, batches):
        import torch

        from scripts import ch9_uneven as script

        args = script.parse_args(flags)
        return script.train(args, "alone", batches, torch.device("cpu"))

    alone = crews[1]
    return {w: alone.run(train, FLAGS, union(w), quiet=True)[0] for w in (2, 3)}


@pytest.mark.parametrize("world_size", [2, 3])
def test_padding_with_empty_batches_is_one_process_on_the_union(
    world_size, truth, crews
):
    """Up to rounding in float64, though shares and last batches are unequal."""
    steps, samples, weights = run(crews[world_size], "pad")
    assert len(set(steps)) == 1 and sum(samples) == 24 * world_size**2
    for found in weights:
        torch.testing.assert_close(found, truth[world_size], rtol=0, atol=1e-12)


@pytest.mark.parametrize("way, near", [("join", 1e-2), (script.WAYS[3], 1e-3)])
def test_join_uses_each_sample_once_but_weighs_them_differently(
    way, near, truth, crews
):
    """By the number of all ranks, or of those present: both miss the mean."""
    steps, samples, weights = run(crews[2], way)
    assert steps == (4, 11) and sum(samples) == 96
    assert torch.equal(weights[0], weights[1])
    assert (weights[0] - truth[2]).abs().max() > near


def test_cutting_loses_samples_and_repeating_counts_some_twice(truth, crews):
    """Both end together, and both are some way off."""
    for way, steps, samples in ("cut", 4, 24 + 28), ("repeat", 11, 24 * 2 + 72 + 21):
        found, used, weights = run(crews[2], way)
        assert (set(found), sum(used)) == ({steps}, samples), way
        assert (weights[0] - truth[2]).abs().max() > 0.01


def test_the_script_says_how_far_each_way_is_off():
    lines = shown.lines("ch9_uneven", 2)
    said = [line.partition("] ")[2] for line in lines]
    assert [line.split(": ")[0] for line in said] == list(script.WAYS)
    off = dict(zip(script.WAYS, (float(x.split()[-1]) for x in said), strict=True))
    assert off["pad"] == 0 < off[script.WAYS[3]] < off["repeat"] < off["cut"]
    assert "8 steps, 192 samples" in said[-1]


def test_more_files_than_there_are_digits_are_refused(crews):
    why = "40 files and more for each rank: there are 74"
    with pytest.raises(RanksError, match=why):
        run_on(crews[2], "ch9_uneven", "--files", "40")


def test_the_highest_rate_that_is_accepted_still_gives_numbers(crews):
    """A distance of nan would be printed with exit code 0."""
    lines = run_on(crews[2], "ch9_uneven", "--lr", "1e30")
    assert lines[0] and "nan" not in str(lines) and "inf" not in str(lines)
    with pytest.raises(SystemExit, match=r"^--lr 1e\+308: must be 1e-30 to 1e\+30$"):
        script.parse_args(["--lr=1e308"])


FSDP = """
import copy
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)  # the same weights and samples on both ranks
alone = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
x, y = torch.randn(6, 4).double(), torch.randint(3, (6,))
net = fully_shard(copy.deepcopy(alone))
mine = slice(0, 6) if rank == 0 else slice(0, 0)  # rank 1 has an empty batch
loss = nn.functional.cross_entropy(net(x[mine]), y[mine], reduction="sum")
(loss / (6 / world_size)).backward()
nn.functional.cross_entropy(alone(x), y).backward()
[(p.grad.full_tensor() - q.grad).abs().max().item()
 for p, q in zip(net.parameters(), alone.parameters(), strict=True)]
"""


def test_an_empty_batch_takes_part_in_fsdps_collectives():
    """The page says so: the gradient is that of one process on all samples."""
    with Ranks(2) as ranks:
        for off in ranks.run(FSDP, quiet=True):
            assert max(off) < 1e-12
