"""Hundreds of calls in a row on our backends: none may wait for ever.

``python tests/bench calls`` makes 2,000 of each, on two ranks and on four.
"""

import pytest

from allranks import launch
from allranks.base.paths import ROOT

CALLS = ROOT / "tests" / "bench" / "calls.py"
RUNS = {2: {"shm": 300, "lesson": 300, "link:nvlink4": 30}, 4: {"shm": 50}}


@pytest.mark.parametrize("world_size", RUNS)
def test_no_call_waits_for_ever(world_size):
    """Gloo's thread frees tensors meanwhile, for which it needs Python's lock."""
    words = [str(word) for pair in RUNS[world_size].items() for word in pair]
    run = launch(CALLS, world_size, *words, timeout=300)
    lines = run.lines[0]
    ends = [line for line in lines if line.endswith("no call hung")]
    assert len(ends) == len(RUNS[world_size]) and lines[-1] == ends[-1]
    assert len(lines) - len(ends) >= 20 * len(ends)
