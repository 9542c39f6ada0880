"""A counter gives each number to one rank, and a slow rank takes fewer."""

import re

import pytest

from allranks import Ranks
from tests.ranks import run_script

RUN = """
import os
from scripts import ch9_pull as script

os.environ["MASTER_ADDR"] = "127.0.0.1"  # torchrun sets it
store = script.open_store(rank, torch.device("cpu"))
mine = script.pull(200, store, 0, 0)
dist.barrier()
mine
"""


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_counter_gives_each_number_to_one_rank(world_size):
    """However the ranks interleave, none is taken twice and none is left."""
    with Ranks(world_size) as ranks:
        found = ranks.run(RUN, quiet=True)
    assert sorted(i for mine in found for i in mine) == list(range(200))


def test_the_script_says_what_the_slow_rank_took(monkeypatch):
    """A rank that is twenty times as slow takes far less than its quarter."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    (line,) = run_script("ch9_pull", 4, "--slower", "20")[0]
    assert "pulled, each once: True" in line
    assert int(re.search(r"took (\d+)%", line)[1]) < 15
