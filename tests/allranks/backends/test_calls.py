"""Hundreds of calls in a row on our backends: none may wait for ever.

``python tests/bench calls`` makes 2,000 of each, on two ranks and on four.
"""

import pytest

from allranks import Ranks
from tests.bench.calls import call_each

RUNS = {2: {"shm": 300, "lesson": 300, "link:nvlink4": 30}, 4: {"shm": 50}}


@pytest.mark.parametrize("world_size", RUNS)
def test_no_call_waits_for_ever(world_size):
    """Gloo's thread frees tensors meanwhile, for which it needs Python's lock."""
    with Ranks(world_size) as ranks:
        for backend, times in RUNS[world_size].items():
            ranks.run(call_each, backend, times, quiet=True)
            *lines, end = ranks.outputs[0].splitlines()
            assert end.endswith(f"{times} calls of each: no call hung")
            assert len(lines) >= 20
