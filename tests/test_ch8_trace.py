"""A trace that the chapter's script writes: read by it, by the figure, by Perfetto."""

import json
import os

import pytest

from allranks.topics import Buckets
from allranks.topics.buckets import traces
from scripts import ch8_compile, ch8_trace
from tests import shown
from tests.ranks import run_script


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Return what the script prints, and the file that it writes."""
    path = tmp_path_factory.mktemp("trace") / "step.json"
    return run_script("ch8_trace", 2, "--trace", str(path))[0], path


def test_the_script_finds_a_message_for_each_bucket(trace):
    """A step with buckets of 128 KiB sends four, and says where it wrote them."""
    lines, path = trace
    first, *messages, wait, last = (line.removeprefix("[rank 0/2] ") for line in lines)
    assert first.startswith("backward: ")
    heads = [line.partition(":")[0] for line in messages]
    assert heads == [f"message {number}" for number in range(4)]
    backward, messages = ch8_trace.spans(path)
    late = max(stop for _, stop in messages) - max(stop for _, stop in backward)
    assert wait == f"then the step waits for {max(0, late):.1f} ms"
    assert last == f"{path} is written: open it in Perfetto"


def test_the_explorable_reads_the_same_file(trace):
    """The figure of chapter 5 finds the same messages, at the same times."""
    _, path = trace
    lanes = traces.lanes(path.read_text("utf8"))
    backward, messages = ch8_trace.spans(path)
    assert lanes["ranks"] == 2 and len(lanes["comm"]) == len(messages) == 4
    zero = min(backward[0][0], messages[0][0])
    for (start, end, name), mine in zip(lanes["comm"], messages, strict=True):
        assert name == "gloo:all_reduce"
        assert [start, end] == pytest.approx([t - zero for t in mine], abs=0.01)
    figure = Buckets(trace=lanes)
    assert "4 collectives take" in figure.facts["summary"]


def test_perfetto_can_read_it(trace):
    """It is of the format that Perfetto documents: complete events, in µs."""
    events = json.loads(trace[1].read_text("utf8"))["traceEvents"]
    whole = [e for e in events if e.get("ph") == "X"]
    assert len(whole) > 100
    for event in whole:
        assert {"name", "ts", "dur", "pid", "tid"} <= event.keys()


def test_spans_are_those_of_backward_and_of_gloo(tmp_path):
    """In order of their start, in ms; everything else is left out."""
    names = "gloo:all_reduce", ch8_trace.BACKWARD + "MmBackward0", "aten::mm"
    events = [
        {"ph": "X", "name": name, "ts": ts, "dur": 500}
        for ts in (3000, 1000)
        for name in names
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [*events, {"ph": "M"}]}))
    lane = [(1, 1.5), (3, 3.5)]
    assert ch8_trace.spans(path) == (lane, lane)


def test_a_trace_without_gloo_is_told(tmp_path, monkeypatch, capsys):
    """On a GPU the messages are NCCL's, of which the script knows nothing."""
    event = {"ph": "X", "name": ch8_trace.BACKWARD + "it", "ts": 0, "dur": 1}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    monkeypatch.setattr(ch8_trace.job, "say", print)
    ch8_trace.report(path)
    assert "no gloo message in the trace" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "no/such/folder.json"])
def test_a_file_that_cannot_be_written_is_refused(name):
    with pytest.raises(SystemExit, match="name a file that can be written"):
        ch8_trace.parse_args(["--trace", name])


MAKE = {"fifo": os.mkfifo, "folder": os.mkdir}


@pytest.mark.parametrize("kind", ["/dev/full", *MAKE])
def test_what_is_no_file_is_refused_and_stays(kind, tmp_path):
    """torch would put a new file in its place; a fifo would wait for a reader."""
    path = tmp_path / kind  # which is /dev/full, if kind is
    if kind in MAKE:
        MAKE[kind](path)
    before = path.stat()
    with pytest.raises(SystemExit, match=f"--trace {path}: not the name of a file"):
        ch8_trace.parse_args(["--trace", str(path)])
    assert path.stat().st_mode == before.st_mode


def test_a_compiled_step_has_a_graph_for_each_bucket():
    """Without DDPOptimizer, the GPT is one graph; with it, there are several."""
    one, many = shown.lines("ch8_compile", 2)
    assert one.startswith("[rank 0/2] optimize=False: graphs: 1, operations: [")
    assert many.startswith("[rank 0/2] optimize=True: graphs: 4, operations: [")
    assert ch8_compile.parse_args([]).cap_mb == 1
