"""A record comes back from its file as it was; ranks are told from helpers and jobs."""

import dataclasses

from allranks.rehearse import failures, records, report
from tests.allranks.rehearse.examples import call, change, epoch, gpu, record


def leave(folder, *left):
    """Write records, as their processes do."""
    for one in left:
        records.write(one, folder)


def test_a_record_is_read_as_it_was_written(tmp_path):
    """JSON knows no tuples, no classes and no numbers as keys."""
    origin = records.TensorOrigin("cpu", "mask", "train.py:2")
    whole = change(
        record(0),
        collectives=[call("all_reduce", 40)],
        ddp=[records.DdpModel(40, 2, [0, 1], [records.Bucket(40, 2, "b", "w")])],
        fsdp=[records.FsdpModel(40, 2, 40, 0, [0, 1])],
        last_collective=records.BegunCollective("send", [0, 1], "", "0", 1, peer=1),
        error=records.Failure("ValueError", "no", tensors=[origin]),
        unwrapped_sums=[records.ParameterSums(0, 0, 2, 0.5, 0.25, "train.py:3")],
        exit_codes={7: -9},
    )
    whole.gpus[0].growth.lacking = [(8, 9, 2)]
    leave(tmp_path, whole, records.Record(pid=1))
    assert sorted(records.read(tmp_path), key=lambda r: r.pid) == [
        records.Record(pid=1),
        whole,
    ]
    filled = {f.name for f in dataclasses.fields(whole) if getattr(whole, f.name)}
    assert {"gpus", "epochs", "digests", "guard", "error"} <= filled


def test_gather_leaves_out_who_only_started_others(tmp_path):
    """A parent, or a loader's worker, is no rank without a GPU."""
    nothing = {"gpus": [], "rank": None}
    parent = change(record(0), pid=1, **nothing)
    echo = records.Failure("ProcessRaisedException", "")
    echoing = change(record(0), pid=2, error=echo, **nothing)
    worker = change(record(0), gpus=[], pid=3, of_command=False)
    idle = change(record(2), gpus=[])
    leave(tmp_path, record(0), record(1), idle, worker, parent, echoing)
    assert [r.pid for r in records.gather(tmp_path)] == [100, 101, 102]


def test_a_rank_that_a_signal_ended_is_named(tmp_path):
    """It leaves no error of its own, but the process that started it knows."""
    killed, stopped = (
        change(record(rank), ended=False, standing_line="train.py:3") for rank in (0, 1)
    )
    error = records.Failure("ChildFailedError", "")
    agent = change(record(0), rank=None, pid=1, gpus=[], error=error)
    agent.exit_codes = {100: -11}
    leave(tmp_path, agent, killed, stopped)
    ranks = records.gather(tmp_path)
    assert failures.failures(ranks) == [
        "rank 0: was killed by SIGSEGV (segmentation fault)"
    ]
    plain = report.text(ranks, [], "exit code 1 after 2 s")
    assert "killed at train.py:3" in plain and "stopped at train.py:3" in plain


def test_jobs_are_told_apart_by_when_their_ranks_began():
    """Each rank's second process belongs to the second job."""
    began = [(0, 1.0, 10), (1, 1.5, 11), (1, 3.0, 13), (0, 3.5, 12)]
    left = [records.Record(rank=rank, began=at, pid=pid) for rank, at, pid in began]
    assert [[r.pid for r in job] for job in records.jobs(left)] == [[10, 11], [12, 13]]


def test_the_main_gpu_is_where_most_is_held():
    """A process without a GPU has none."""
    one = change(record(0), gpus=[gpu(1, peak_bytes=512), gpu(0), gpu(2, peak_bytes=7)])
    assert one.main_gpu.index == 0
    assert change(one, gpus=[]).main_gpu is None
    assert epoch(0).trains and not epoch(0, last_step=0).trains
