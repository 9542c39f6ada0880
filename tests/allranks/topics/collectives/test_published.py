"""Published bandwidths: what was typed by hand agrees with physics and with itself."""

import itertools

import pytest

from allranks.topics.collectives.published import MEASURED, bus, seconds

LINES = {"NVLink 3": 300, "NVLink 4": 450, "NVLink 5": 900}  # GB/s of a data sheet
LINES |= {"InfiniBand": 400, "EFA": 400}  # eight cards of 400 Gb/s


@pytest.mark.parametrize("name", MEASURED)
def test_more_bytes_take_longer(name):
    """A digit that was typed wrongly makes a larger tensor faster than a smaller one.

    Under a megabyte latencies hide it, so there a time may fall by a few per cent.
    """
    one = MEASURED[name]
    times = [seconds(n, one.num_gpus, gb_per_s) for n, gb_per_s in one.bus.items()]
    for before, after in itertools.pairwise(times):
        assert 0.9 * before < after < 2.1 * before


@pytest.mark.parametrize("name", MEASURED)
def test_no_link_is_outrun(name):
    """Where switches add up, the bus may exceed the line rate, but not twice."""
    one, (line,) = MEASURED[name], [v for k, v in LINES.items() if k in name]
    assert name.startswith(f"{one.num_gpus} ")
    assert 0.5 * line < max(one.bus.values()) < 2 * line


def test_seconds_and_bus_undo_each_other():
    """One is computed from the other."""
    assert bus(1e6, 8, seconds(1e6, 8, 40.0)) == pytest.approx(40.0)
