"""Every byte of a step weighs the same, whichever micro-batch and rank it is in."""

import pytest

from allranks import Ranks
from tests import shown

RUN = """
import torch
from scripts import ch9_mean_loss as script
from tests.test_ch9_packing import network, texts

every = [[texts(row, 10 * r + i) for i, row in enumerate(lengths[r])]
         for r in range(world_size)]
flat = [t for some in every for batch in some for t in batch]
script.means(network(), every[rank], flat)
"""


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_mean_of_bytes_is_one_process_on_all_of_them(world_size):
    """The two other means are off as soon as the micro-batches are unequal."""
    lengths = [[[3, 60], [5], [90, 4, 9]], [[7], [8, 8], [120]], [[2], [3], [50]]]
    with Ranks(world_size) as ranks:
        ranks.push({"lengths": lengths})
        for off in ranks.run(RUN, quiet=True):
            assert off["mean of bytes"] < 1e-12
            assert off["mean of micro-batches"] > 0.05
            assert (off["mean of ranks"] > 1e-3) == (world_size > 1)


def test_means_are_equal_if_all_micro_batches_are():
    """So nobody noticed as long as all texts were cut to one length."""
    with Ranks(2) as ranks:
        ranks.push({"lengths": [[[9, 9], [9, 9]]] * 2})
        for off in ranks.run(RUN, quiet=True):
            assert max(off.values()) < 1e-12


def test_the_page_shows_that_only_a_mean_of_bytes_is_right():
    """The mean of micro-batches is far off, and the mean of ranks a little."""
    off = [float(line.split()[-1]) for line in shown.lines("ch9_mean_loss", 2)]
    assert off[0] > 0.1 > 0.01 > off[1] > off[2] == 0
