"""Python and JavaScript read the same from a trace, and refuse the same traces."""

import json
import random

import pytest

from allranks.topics import Buckets
from allranks.topics.buckets import figure, traces
from allranks.topics.kit import bundle
from tests.allranks.topics.kit.test_explorable import REPLAY, figure_file, node

EXAMPLE = bundle.TOPICS / "buckets" / "example_trace.json"
BACK = traces.BACKWARD
SENT = {"cat": "user_annotation", "name": "gloo:all_reduce"}
WORK = {"cat": "cpu_op", "name": f"{BACK}MmBackward0"}


def event(what: dict, ts, dur, **more) -> dict:
    """Return an event as Kineto writes it."""
    return {"ph": "X", "ts": ts, "dur": dur, **what, **more}


def trace(*events, **more) -> str:
    """Return a trace with these events."""
    return json.dumps({"traceEvents": events, **more})


def mark(number, ts, dur, cat="user_annotation") -> dict:
    """Return a step of the profiler's schedule."""
    return event({"cat": cat, "name": f"ProfilerStep#{number}"}, ts, dur)


KERNEL, NCCL = (
    {"cat": "kernel", "name": name} for name in ("gemm", "ncclDevKernel_AllReduce_Sum")
)
TWO_STEPS = [
    mark(0, 0, 100), event(WORK, 10, 20), event(SENT, 20, 15),
    mark(1, 100, 100), event(WORK, 110, 30.5), event(SENT, 130.25, 35, tid="x"),
    mark(2, 200, 100), event(WORK, 210, 30),
]  # fmt: skip
GPU = [
    event(WORK, 0, 5), event({"cat": "cpu_op", "name": "nccl:all_reduce"}, 3, 1),
    mark(7, 0, 10), mark(7, 100, 100, "gpu_user_annotation"),
    event(KERNEL, 50, 10), event(KERNEL, 110, 40), event(NCCL, 130, 50),
]  # fmt: skip
GOOD = [
    EXAMPLE.read_text("utf8"),
    trace(event(WORK, 1, 2), event(SENT, 2, 3)),
    trace(*TWO_STEPS, distributedInfo={"world_size": 4}),
    trace(*GPU, distributedInfo=None),
    trace(event(WORK, 1, 2), event(SENT, 1.5, 0), distributedInfo={"world_size": "2"}),
    trace(
        None, 3, [], {}, {"ph": "X"}, event(WORK, "1", 2), event(WORK, 5, -1),
        event(WORK, 1, 2, cat=["kernel"]), event(SENT, 4, 5, name=7),
        event(SENT, True, 2), event(SENT, 3, 4, cat="constructor"),
    ),
    trace(*(event(WORK, 10 * i, 5) for i in range(700)), event(SENT, 2000, 900)),
]  # fmt: skip
BAD = [
    ("", "no JSON"),
    ('{"traceEvents": [', "no JSON"),
    ('{"traceEvents": [NaN]}', "no JSON"),
    ("\ufeff{}", "no JSON"),
    *((text, "no traceEvents") for text in ("null", "5", "[]", "{}", '"traceEvents"')),
    ('{"traceEvents": {"0": 1}}', "no traceEvents"),
    (trace(), "no gloo or nccl event"),
    (trace(event(WORK, 1, 2)), "no gloo or nccl event"),
    (trace(event(SENT, 1, 2)), "no backward pass"),
    (trace(event(NCCL, 1, 2), event(WORK, 1, 2)), "no backward pass"),
    (trace(event(WORK, 1, 2), *[event(SENT, 1, 2)] * 501), "501 collectives"),
    (trace(event(WORK, 1, 2), event(SENT, 1, 2) | {"ts": "1e999"}), "no gloo or nccl"),
    ('{"traceEvents": [{"ph": "X", "name": "gloo:a", "ts": 1e999, "dur": 1}]}', "gloo"),
]


def random_traces(number: int) -> list[str]:
    """Return traces with random events, in any order, with and without steps."""
    dice, found = random.Random(0), []
    for _ in range(number):
        events = []
        for _ in range(dice.randint(2, 60)):
            start, length = 1e12 + 1e3 * dice.random(), 90 * dice.random()
            events.append(event(dice.choice([WORK, SENT]), start, length))
        events += [mark(i, 1e12 + 300 * i, 300) for i in range(dice.randint(0, 3))]
        dice.shuffle(events)
        found.append(trace(*events))
    return found


def test_javascript_reads_what_python_reads(tmp_path):
    """They agree on good and bad files, to the last digit and the last word."""

    def here(text):
        try:
            return traces.lanes(text)
        except ValueError as error:
            return {"error": str(error)}

    texts = [*GOOD, *(text for text, _ in BAD), *random_traces(60)]
    script = figure_file("buckets", tmp_path)
    there = json.loads(node(REPLAY, script, "lanes", data=json.dumps(texts)))
    assert len(there) == len(texts)
    for text, answer in zip(texts, there, strict=True):
        assert answer == here(text), text[:300]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_bad_file_gets_a_sentence(text, reason):
    """The sentence says why it cannot be read."""
    with pytest.raises(ValueError, match=reason):
        traces.lanes(text)


def test_the_last_whole_step_counts():
    """The last complete step counts, neither the first one nor one that is cut off."""
    found = traces.lanes(GOOD[2])
    assert found["compute"] == [[0, 0.031]] and found["ranks"] == 4
    assert found["comm"] == [[0.02, 0.055, "gloo:all_reduce"]]


def test_on_a_gpu_kernels_count():
    """On a GPU, kernels count, as the CPU's launches do not say when a kernel ran."""
    found = traces.lanes(GOOD[3])
    assert found["compute"] == [[0, 0.04]]
    assert found["comm"] == [[0.02, 0.07, "ncclDevKernel_AllReduce_Sum"]]
    assert traces.uncovered(found["comm"], found["compute"]) == pytest.approx(0.03)


def test_the_example_is_a_real_trace_and_the_pages():
    """The button shows the lanes of this file: three buckets, on two ranks."""
    text = EXAMPLE.read_text("utf8")
    found = traces.lanes(text)
    assert len(found["comm"]) == 3 and found["ranks"] == 2
    assert traces.trim(text) == text
    assert found == figure.EXAMPLE
    facts = Buckets(trace=found).facts["seen"]
    assert 0 < facts["exposed"] <= facts["sending"] <= facts["length"]
