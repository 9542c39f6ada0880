"""Traces of torch.profiler: when a rank computed, and when it communicated."""

import json
from collections.abc import Sequence
from itertools import pairwise
from math import floor
from typing import NoReturn

COMM = ("gloo:", "nccl:", "mpi:", "ucc:")
BACKWARD = "autograd::engine::evaluate_function: "
MOST = 500  # collectives of a step that can still be drawn
LARGEST = 1e300  # a time; a larger number cannot be one

Span = tuple[float, float, str]  # start, end, name


def lanes(text: str) -> dict:
    """Read one step of a trace that ``prof.export_chrome_trace`` wrote.

    On a CPU, autograd's backward counts as computing, and events of gloo as
    communicating. If the trace has nccl's kernels, those communicate, and all other
    kernels compute. Of several steps (``prof.step()``), the last one with both counts.

    Args:
        text: the trace, as JSON.
    Returns:
        ``compute``, [start, end] in ms, in order and without overlap, at most 500 (if
        there are more, tiny gaps are closed); ``comm``, [start, end, name] in ms, in
        order; ``ranks``, the world size, or None.
    Raises:
        ValueError: with one sentence, if the text is no such trace.
    """
    try:
        trace = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError(
            "this is no JSON: export it with prof.export_chrome_trace, and unpack .gz"
        ) from None
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise ValueError("there are no traceEvents: this is no trace of torch.profiler")
    spans = {"kernel": [], "gpu_user_annotation": [], "": []}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        start, length, name = event.get("ts"), event.get("dur"), event.get("name")
        # A file of somebody else's: what does not fit is passed over.
        if _number(start) and _number(length) and length >= 0 and isinstance(name, str):
            kind = str(event.get("cat"))
            spans[kind if kind in spans else ""].append((start, start + length, name))
    kernels = spans["kernel"]
    comm = [s for s in kernels if s[2].startswith("nccl")]
    if comm:
        compute = [s for s in kernels if not s[2].startswith("nccl")]
        marks = spans["gpu_user_annotation"]
    else:
        marks = spans[""]
        comm = [s for s in marks if s[2].startswith(COMM)]
        compute = [s for s in marks if s[2].startswith(BACKWARD)]
    if not comm:
        raise ValueError(
            "no gloo or nccl event in it: profile DDP on two ranks or more"
        )
    if not compute:
        raise ValueError("no backward pass in it: profile loss.backward() too")
    # From the end, as the first steps are warm-up; a step in which one of the lanes is
    # empty was not recorded to its end.
    for begin, end, name in sorted(marks, reverse=True):
        both = [[s for s in lane if begin <= s[0] < end] for lane in (compute, comm)]
        if name.startswith("ProfilerStep#") and all(both):
            compute, comm = both
            break
    if len(comm) > MOST:
        raise ValueError(f"{len(comm)} collectives are too many: profile a single step")
    zero = min(s[0] for s in compute + comm)
    length = max(s[1] for s in compute + comm) - zero
    busy = union(compute)
    if len(busy) > MOST:
        # Thousands of short kernels: a gap that is thinner than a line is closed.
        busy = union(compute, gap=length / MOST)
    info = trace.get("distributedInfo")
    ranks = info.get("world_size") if isinstance(info, dict) else None

    def ms(time: float) -> float:
        return floor(time - zero + 0.5) / 1000

    return {
        "compute": [[ms(a), ms(b)] for a, b in busy],
        "comm": [[ms(a), ms(b), name[:40]] for a, b, name in sorted(comm)],
        "ranks": ranks if type(ranks) is int else None,
    }


def trim(text: str) -> str:
    """Keep what ``lanes`` reads of a CPU trace: a small file without paths.

    Args:
        text: the trace, as JSON.
    """
    trace = json.loads(text)
    info, events = trace.get("distributedInfo", {}), []
    for event in trace["traceEvents"]:
        known = str(event.get("name")).startswith((*COMM, BACKWARD, "ProfilerStep#"))
        if event.get("ph") == "X" and known:
            keys = "ph", "cat", "name", "pid", "tid", "ts", "dur"
            events.append(json.dumps({key: event[key] for key in keys}))
    info = {key: info[key] for key in ("backend", "rank", "world_size") if key in info}
    head = f'{{"schemaVersion": 1, "distributedInfo": {json.dumps(info)}'
    return head + ', "traceEvents": [\n' + ",\n".join(events) + "\n]}\n"


def union(spans: Sequence, gap: float = 0.0) -> list[list[float]]:
    """Join the spans that overlap, or are at most ``gap`` apart.

    >>> union([(3, 4), (0, 2, "a"), (1, 2.5)])
    [[0, 2.5], [3, 4]]
    """
    found = []
    for start, end, *_ in sorted(spans):
        if found and start <= found[-1][1] + gap:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def uncovered(spans: Sequence, cover: Sequence) -> float:
    """Return the time within ``spans`` during which none of ``cover`` runs.

    >>> uncovered([(0, 4)], cover=[(1, 2)])
    3
    """
    edges = sorted({t for s in (*spans, *cover) for t in s[:2]})
    spans, cover = union(spans), union(cover)

    def inside(parts: list[list[float]], a: float, b: float) -> bool:
        return any(start <= a and b <= end for start, end in parts)

    bits = [(a, b) for a, b in pairwise(edges) if inside(spans, a, b)]
    return sum(b - a for a, b in bits if not inside(cover, a, b))


def _number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < LARGEST


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
