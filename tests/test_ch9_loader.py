"""The loader is a queue: what the formula says, and what torch's loader does."""

import itertools
import multiprocessing
import random
import re
import statistics
import time

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from allranks.base.paths import ROOT
from allranks.topics.loader import sums as loader
from scripts import ch9_loader as script
from tests import shown


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
    """The page's formula is what an event simulation of equal loads gives."""
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


def test_the_page_shows_how_many_workers_start_and_what_they_get():
    """Three epochs start six workers, or two that stay; spawn sends the data."""
    lines = shown.lines("ch9_loader", 2)
    first, *said = [line.partition("] ")[2] for line in lines]
    assert re.fullmatch(r"cores per rank: [\d.]+; load before: [\d.]+", first)
    assert [line.split(":")[0] for line in said[:3]] == [
        f"read, {n} workers" for n in range(3)
    ]
    assert [line.split("set by the ")[1].split(";")[0] for line in said[:3]] == [
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


def ms_per_step(draw, prefetch_factor) -> float:
    """Return a step's ms with eight workers and a model that is always faster."""
    found = []
    for seed in range(5):
        dice = random.Random(seed)
        loads = [draw(dice) for _ in range(3000)]
        batches = loader.simulate(loads, 1.0, 8, prefetch_factor, 128, False)
        found.append((batches[-1].done - batches[750].done) / (2999 - 750))
    return statistics.mean(found)


def test_a_longer_queue_helps_if_load_times_vary_and_not_if_they_do_not():
    """The page's table is what the simulation behind its figure gives."""
    page = (ROOT / "book" / "ch9_data.md").read_text("utf8")
    lines = page[page.index("| ms a step, if batches take") :].splitlines()
    rows = [line.strip("|").split("|") for line in itertools.islice(lines, 2, 5)]
    draws = (
        lambda dice: 60.0,
        lambda dice: dice.uniform(0, 120),
        lambda dice: dice.expovariate(1 / 60),
    )
    for row, draw in zip(rows, draws, strict=True):
        for said, prefetch_factor in zip(row[1:], (1, 2, 4, 16), strict=True):
            found = ms_per_step(draw, prefetch_factor)
            assert float(said) == pytest.approx(found, rel=0.02)


class Late(Dataset):
    """Batches of which the first is not ready before three others were received."""

    def __init__(self):
        self.received = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 0:
            assert self.received.wait(60)
        return i


def test_batches_in_any_order_pass_one_that_is_late():
    """In their order the loop would wait for the first, and see no other."""
    how = {"num_workers": 2, "multiprocessing_context": "fork"}
    data = Late()
    batches, found = iter(DataLoader(data, None, in_order=False, **how)), []
    for i in batches:
        found.append(i)
        if len(found) == 3:
            data.received.set()
    assert 0 not in found[:3] and sorted(found) == [*range(8)]
    late = iter(DataLoader(Late(), None, timeout=1, **how))
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(late)


class Table(Dataset):
    """A long table, as a list or as an array; a worker reads it all."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return 1

    def __getitem__(self, _):
        before = psutil.Process().memory_full_info().uss
        sum(1 for number in self.numbers if number is None)
        return psutil.Process().memory_full_info().uss - before


def test_reading_a_list_copies_it_into_the_worker_and_reading_an_array_does_not():
    """Python counts references in the objects themselves, so it writes."""
    grown = {}
    for kind, numbers in (
        ("list", [float(i) for i in range(500_000)]),  # 24 bytes each
        ("array", np.arange(500_000.0)),
    ):
        how = {"num_workers": 1, "multiprocessing_context": "fork"}
        grown[kind] = next(iter(DataLoader(Table(numbers), None, **how)))
    assert grown["list"] > 10e6 > 4 * grown["array"]
