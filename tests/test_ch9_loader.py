"""The loader is a queue: what the formula says, and what torch's loader does."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import launch
from scripts import ch9_loader as script


def simulate(load, compute, workers, steps=400):
    """Return the time per step of a queue that is never full, event by event."""
    free, now, begun = [0.0] * workers, 0.0, 0.0
    for step in range(steps):
        worker = step % workers  # torch hands out batches in turn
        free[worker] += load
        now = max(now, free[worker])  # next() waits until it is there
        if step == steps // 2:
            begun = now
        now += compute
    return (now - begun) / (steps - steps // 2)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.integers(1, 9))
def test_the_slower_of_the_two_sets_the_pace(load, compute, workers):
    """The page's formula is what an event simulation gives, up to its ends."""
    wanted = script.step_time(load, compute, workers)
    assert simulate(load, compute, workers) == pytest.approx(wanted, rel=0.1)
    assert script.step_time(load, compute, 0) == load + compute


def test_waiting_is_what_next_takes(monkeypatch):
    """Measured on a clock that only sleeping moves, so that it is exact."""
    now = [0.0]
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    loader = script.DataLoader(script.Slow("read", 3.0, 12), None)
    step_s, share = script.time_steps(loader, 1.0, skip=4)
    assert (step_s, share) == (4.0, 0.75)
    loader = script.DataLoader(script.Slow("bursts", 3.0, 16), None)
    step_s, share = script.time_steps(loader, 1.0, skip=8)
    assert (step_s, share) == (4.0, 0.75)  # eight loads at once, every eighth time


def test_the_script_counts_workers_and_what_they_get():
    """Three epochs start six workers, or two that stay; spawn sends the data."""
    lines = launch("ch9_loader", 2, "--load-ms", "2", "--compute-ms", "1").lines[0]
    said = [line.partition("] ")[2] for line in lines]
    assert [line.split(":")[0] for line in said[:3]] == [
        f"read, {n} workers" for n in range(3)
    ]
    assert [line.split("for the ")[1].split(";")[0] for line in said[:3]] == [
        *("loader", "loader", "model")
    ]
    assert said[-6:-4] == [
        "3 epochs, persistent=False: 6 processes started",
        "3 epochs, persistent=True: 2 processes started",
    ]
    assert said[-4:-2] == [  # a copy of the rank, with what a thread of it held
        "fork: 0 bytes are sent; in the process group: True",
        "fork: the lock is held: True; threads: 1 of 2",
    ]
    sent, _, group = said[-2].removeprefix("spawn: ").partition(" bytes are sent; ")
    assert int(sent) > 100_000 and group == "in the process group: False"
    assert said[-1] == "spawn: the lock is held: False; threads: 1 of 2"
