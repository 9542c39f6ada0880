"""Records of ranks that are healthy, and parts of records."""

from allranks.rehearse import records


def gpu(index, line="train.py:9", peak_bytes=2048):
    """Return what a rank has held on a GPU."""
    return records.Gpu(
        index=index,
        physical=index,
        peak_bytes=peak_bytes,
        capacity_bytes=4096,
        first_line=line,
        holders={"parameters": 2048},
        lines=[(line, peak_bytes)],
        growth=records.BatchGrowth(8, [(2048, 512), (1536, 1024)]),
    )


def epoch(rank, **changes):
    """Return a rank's pass over 16 samples, of which it reads every other one."""
    about = {"line": "train.py:20", "num_samples": 16, "finished": True}
    about |= {"indices": list(range(rank, 16, 2)), "first_step": 0, "last_step": 4}
    about |= {"distributed": True, "shuffles": True, "data": (7, True)}
    return records.Epoch(**about | changes)


def record(rank):
    """Return a healthy rank's record."""
    back = list(range(14 + rank, -1, -2))
    later = epoch(rank, indices=back, first_step=4, last_step=8)
    return records.Record(
        host="node0",
        pid=100 + rank,
        began=1e9,
        of_command=True,
        rank=rank,
        local_rank=rank,
        world_size=2,
        declared_world_size=2,
        num_processes=2,
        gpus=[gpu(rank)],
        current_device=rank,
        num_steps=8,
        num_backwards=8,
        epochs=[epoch(rank), later],
        replicated=True,
        data_parallel=True,
        num_late_collectives=7,
        digests={1: 0.5, 2: 0.25},
        guard=records.GuardNotes(["DDP"]),
        modelled_s=1e-3,
        ended=True,
    )


def change(one, **changes):
    """Give fields of a record, or of a part of it, other values; return it."""
    for name, value in changes.items():
        assert hasattr(one, name), name
        setattr(one, name, value)
    return one


def healthy():
    """Return the records of two healthy ranks."""
    return [record(0), record(1)]


def call(op, num_bytes, times=8, steps=8, in_backward=True):
    """Return a collective of both ranks."""
    about = {"op": op, "num_bytes": num_bytes, "group": [0, 1], "line": "train.py:27"}
    about |= {"in_backward": in_backward, "times": times, "num_steps": steps}
    return records.Collective(**about)
