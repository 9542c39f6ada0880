"""A pipelined broadcast reaches all ranks, in the steps that the page derives."""

import pytest

from allranks import Ranks
from scripts import ch7_broadcast as script
from tests import shown

RUN = """
from scripts import ch7_broadcast as script
from ch7_collectives import LOG  # the script's own: not scripts.ch7_collectives

x = torch.arange(n) + 100 * rank
LOG.clear()
script.chain(x, segments)
torch.equal(x, torch.arange(n)), list(LOG)
"""


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_have_what_rank_0_had(world_size):
    """Whether or not the segments are of equal length, or have a number at all."""
    with Ranks(world_size) as ranks:
        for n, segments in (12, 1), (12, 3), (12, 12), (5, 3), (2, 7), (0, 2):
            ranks.push({"n": n, "segments": segments})
            good, logs = zip(*ranks.run(RUN, quiet=True), strict=True)
            assert all(good), (n, segments)
            steps = (world_size - 2 + segments) if world_size > 1 else 0
            assert script.replay(logs, lambda *_: 1) == steps
            if n % segments == 0:
                share = script.replay(logs, lambda *message: message[2])
                assert share == steps * 8 * n // segments


def test_the_script_finds_the_best_number_near_the_formulas():
    """The least time is that of 16 segments; the formula says 11.3."""
    *lines, last = shown.lines("ch7_broadcast", 4)
    times = {int(line.split()[2]): float(line.split()[-4]) for line in lines}
    assert min(times, key=times.get) == 16
    assert last.endswith("best by the formula: 11.3 segments")
