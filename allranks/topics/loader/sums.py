"""A loader as a queue: when workers load batches, and when the model takes them.

It follows torch's DataLoader. Batch b belongs to worker b % N. At the start each worker
is asked for ``prefetch_factor`` batches, and whenever the model takes a batch, one more
is asked for. Batches are taken in their order, as without ``in_order=False``. All times
are in ms.

Processes share the cores: if n of them want to compute on C cores, each has the speed
min(1, C / n).
"""

import itertools
from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

EPS = 1e-9  # ms
A, M = 16807, 2**31 - 1  # Park and Miller's generator: its products fit in a double


class Batch(NamedTuple):
    """What became of a batch; times in ms.

    Attributes:
        worker: that loads it; 0 is the main process if there are no workers.
        asked: when the worker was told to load it.
        start: when it began to.
        ready: when it was loaded.
        taken: when the model began its step with it.
        done: when that step ended.
    """

    worker: int
    asked: float
    start: float
    ready: float
    taken: float
    done: float


def load_times(num: int, mean: float, jitter: float) -> list[float]:
    """Return how long each batch takes to load: evenly between mean ± jitter · mean.

    >>> load_times(3, 10.0, 0.0)
    [10.0, 10.0, 10.0]
    """
    times, x = [], 1
    for _ in range(num):
        x = x * A % M
        times.append(mean * (1 + jitter * (2 * (x * A % M) / M - 1)))
    return times


def simulate(
    loads: Sequence[float],
    step: float,
    num_workers: int,
    prefetch_factor: int,
    cores: int,
    on_core: bool,
) -> list[Batch]:
    """Play an epoch of ``len(loads)`` batches.

    Args:
        loads: ms that each batch takes to load on a core of its own.
        step: ms of the model's step.
        num_workers: N; with 0 the main process loads, and nothing ahead.
        prefetch_factor: batches per worker that were asked for and not taken yet.
        cores: C, for all workers, and for the model if ``on_core``.
        on_core: whether the model computes on a core, and not on a GPU.

    >>> two = simulate([4.0] * 3, step=1.0, num_workers=2, prefetch_factor=1, cores=8,
    ...                on_core=False)
    >>> [(b.worker, b.ready, b.taken) for b in two]
    [(0, 4.0, 4.0), (1, 4.0, 5.0), (0, 8.0, 8.0)]
    """
    if not num_workers:
        return _alone(loads, step)
    num, room = len(loads), num_workers * prefetch_factor
    queues = [deque(range(w, min(room, num), num_workers)) for w in range(num_workers)]
    asked, start, ready = [0.0] * num, [0.0] * num, [None] * num
    taken, done = [0.0] * num, [0.0] * num
    busy: list[list | None] = [None] * num_workers  # of each worker: [batch, ms left]
    now, turn, left = 0.0, 0, None  # left: ms of the model's step; None while it waits
    while turn < num:
        if left is None and ready[turn] is not None:
            taken[turn], left = now, step
            if turn + room < num:
                asked[turn + room] = now
                queues[turn % num_workers].append(turn + room)
        for w, queue in enumerate(queues):
            if busy[w] is None and queue:
                batch = queue.popleft()
                busy[w], start[batch] = [batch, loads[batch]], now
        works = [work for work in busy if work is not None]
        running = len(works) + (1 if on_core and left is not None else 0)
        speed = min(1.0, cores / max(1, running))
        own = speed if on_core else 1.0
        ends = [work[1] / speed for work in works]
        ends += [] if left is None else [left / own]
        passed = min(ends)
        now += passed
        for w, work in enumerate(busy):
            if work is not None:
                work[1] -= passed * speed
                if work[1] <= EPS:
                    ready[work[0]], busy[w] = now, None
        if left is not None:
            left -= passed * own
            if left <= EPS:
                done[turn], left = now, None
                turn += 1
    rows = zip(asked, start, ready, taken, done, strict=True)
    return [Batch(b % num_workers, *row) for b, row in enumerate(rows)]


def _alone(loads: Sequence[float], step: float) -> list[Batch]:
    """Play an epoch in which the main process loads each batch when it needs it."""
    found, now = [], 0.0
    for load in loads:
        ready = now + load
        found.append(Batch(0, now, now, ready, ready, ready + step))
        now = ready + step
    return found


def depths(batches: Sequence[Batch]) -> list[tuple[float, int]]:
    """Return how many batches lie ready from each moment on.

    >>> one = Batch(0, 0.0, 0.0, 4.0, 4.0, 5.0), Batch(1, 0.0, 0.0, 4.0, 5.0, 6.0)
    >>> depths(one)
    [(0.0, 0), (4.0, 1), (5.0, 0)]
    """
    events = [(b.ready, 1) for b in batches] + [(b.taken, -1) for b in batches]
    found, depth = [(0.0, 0)], 0
    for time, change in sorted(events):
        depth += change
        if found[-1][0] == time:
            found.pop()
        found.append((time, depth))
    return found


def rates(
    batches: Sequence[Batch], num: int, num_workers: int
) -> tuple[float, float, float]:
    """Return the steps per second, and the shares of time that model and workers wait.

    They are those of ``num`` batches without the start: without the workers' first
    round, and of whole rounds, because batches may come in bursts of one per worker. At
    least ``num_workers * prefetch_factor`` more batches must have been played, or the
    end would be faster, as nothing is left to load.

    >>> rates(simulate([4.0] * 7, 1.0, 1, 2, cores=8, on_core=False), 5, 1)
    (250.0, 0.75, 0.0)
    """
    first = num_workers + (num - 1 - num_workers) % num_workers if num_workers else 0
    begin, end = batches[first].done, batches[num - 1].done
    window = itertools.pairwise(batches[first:num])
    model_waits = sum(after.taken - before.done for before, after in window)
    works = sum(max(0.0, min(b.ready, end) - max(b.start, begin)) for b in batches)
    # Without workers, the model's own process loads: nobody waits to hand over.
    workers_wait = 1 - works / (num_workers * (end - begin)) if num_workers else 0
    steps = num - 1 - first
    return 1000 * steps / (end - begin), model_waits / (end - begin), workers_wait


def bounds(
    load: float, step: float, num_workers: int, cores: int, on_core: bool
) -> dict[str, float]:
    """Return at most how many steps per second each part allows.

    >>> bounds(60.0, 20.0, num_workers=2, cores=4, on_core=False)
    {'model': 50.0, 'workers': 33.333333333333336, 'cores': 66.66666666666667}
    """
    return {
        "model": 1000 / step,
        "workers": 1000 * num_workers / load if num_workers else 1000 / (load + step),
        "cores": 1000 * cores / (load + (step if on_core else 0)),
    }


def enough(load: float, step: float, cores: int, on_core: bool) -> int:
    """Return the number of workers from which on more do not help, if loads are equal.

    >>> enough(60.0, 20.0, cores=4, on_core=False)
    3
    """
    most = bounds(load, step, 1, cores, on_core)
    return max(1, ceil(min(most["model"], most["cores"]) * load / 1000 - EPS))
