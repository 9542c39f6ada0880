"""Thousands of calls in a row on our backends: none may wait for ever.

``python tests/bench calls`` makes 2,000 of each, on two ranks and on four.
"""

import pytest

from allranks import launch
from allranks.base.paths import ROOT

CALLS = ROOT / "tests" / "bench" / "calls.py"
RUNS = [("shm", 2, 500), ("shm", 4, 100), ("lesson", 2, 500), ("link:nvlink4", 2, 50)]


@pytest.mark.parametrize(("backend", "world_size", "times"), RUNS)
def test_no_call_waits_for_ever(backend, world_size, times):
    """Gloo's thread frees tensors meanwhile, for which it needs Python's lock."""
    run = launch(CALLS, world_size, backend, str(times), timeout=300)
    *each, last = run.lines[0]
    assert last.endswith("no call hung") and len(each) >= 20
