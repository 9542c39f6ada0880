"""What was sent equals the formula, DDP's buckets have names, and waits have ends."""

from allranks.rehearse import formulas, hangs
from tests.allranks.backends.gpus import gpu_ranks

SEND = """
from types import SimpleNamespace
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from allranks.rehearse.traffic import Traffic
from allranks.rehearse.wrapped import of_ddp, of_fsdp

def layers():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(gpu)

def sent(model, passes=4):
    traffic = Traffic(SimpleNamespace(num_steps=0))
    end = nccl.watch(traffic.called)
    for _ in range(passes):
        model(torch.ones(2, 64, device=gpu)).sum().backward()
    end()
    about = {"rank": rank, "backwards": passes, "steps": passes, "ddp": [], "fsdp": []}
    return about | traffic.facts()

torch.cuda.set_device(rank)
mesh = DeviceMesh.from_group(group, "cuda")
net = layers()
for part in net:
    fully_shard(part, mesh=mesh)
fully_shard(net, mesh=mesh)
fsdp = sent(net) | {"fsdp": [of_fsdp(net)]}
net = layers()
fully_shard(net, mesh=mesh)  # all in the root, which stays gathered after forward
root = sent(net) | {"fsdp": [of_fsdp(net)]}
net = layers()
net[1].requires_grad_(False)
size = 2 * 4 * (64 * 64 + 64) / 2**20
ddp = nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=size)
ddp = sent(ddp) | {"ddp": [of_ddp(ddp)]}
fsdp, root, ddp
"""


def test_what_ddp_and_fsdp_send_is_what_the_formula_says():
    """Of four layers, DDP averages three, in buckets; FSDP2 gathers each twice."""
    with gpu_ranks(2) as ranks:
        fsdp, root, ddp = zip(*ranks.run(SEND), strict=True)
    assert formulas.rows(ddp) == [
        ["DDP, all_reduce", "49.9 kB", "49.9 kB", "49.9 kB, the same", "ranks 0–1"]
    ]
    assert formulas.rows(fsdp) == [
        [f"FSDP2, {op}", "66.6 kB", law, counted, "ranks 0–1"]
        for op, law, counted in (
            ("all_gather", "66.6 kB + 66.6 kB again", "133 kB, the same"),
            ("reduce_scatter", "66.6 kB", "66.6 kB, the same"),
        )
    ]
    assert formulas.rows(root)[0][2:4] == ["66.6 kB", "66.6 kB, the same"]
    assert formulas.buckets(ddp) == [
        ["1", "33.3 kB", "4", "3.bias", "2.weight", "ranks 0–1"],
        ["2", "16.6 kB", "2", "0.bias", "0.weight", "ranks 0–1"],
    ]


def test_twice_the_bytes_are_not_called_the_same():
    """The same record with half as many backward passes."""
    call = {"op": "all_reduce", "bytes": 100, "group": [0, 1], "in": "backward"}
    model = {"bytes": 100, "group": [0, 1], "buckets": []}
    one = {"rank": 0, "backwards": 4, "steps": 4, "ddp": [model], "fsdp": []}
    one["calls"] = [call | {"times": 8, "line": ""}]
    assert formulas.rows([one])[0][3] == "200 B, 2 times that"
    no_sync = one | {"backwards": 16, "steps": 8}
    told = "50 B, 0.5 times that: once in a step, which has 2 passes"
    assert formulas.rows([no_sync])[0][3] == told
    one["ddp"].append(model)  # whose all_reduce was it?
    assert formulas.rows([one]) == []


def rank(number, last=None, error="", **changes):
    """Return what a rank's record has of its end."""
    told = {"text": error, "line": "train.py:9"} if error else None
    about = {"rank": number, "last_call": last, "error": told, "stands": ""}
    about |= {"host": "", "pid": number, "began": 0.0}
    return about | {"ended": False} | changes


def call(number, line="train.py:5", peer=None, name="0"):
    """Return a call of four ranks."""
    about = {"op": "all_reduce" if peer is None else "recv", "group": [0, 1, 2, 3]}
    return about | {"number": number, "line": line, "peer": peer, "name": name}


def test_a_wait_names_who_came_and_where_the_others_were():
    """Two ranks wait in call 7; one is still before it, and one has failed."""
    late = f"[Rank 0] {hangs.TIMEOUT}: ..."
    records = [
        rank(0, call(7), late),
        rank(1, call(7, "train.py:6"), late),
        rank(2, call(6), stands="lib/train.py:30"),
        rank(3, call(6), "no such file"),
    ]
    (said,) = hangs.waits(records)
    assert said == (
        "ranks 0–1 waited at train.py:5 and train.py:6 in all_reduce, call 7 of ranks "
        "0–3, for ranks 2–3; rank 2 stood at train.py:30; rank 3 had failed at "
        "train.py:9"
    )


def test_a_message_is_waited_for_from_its_other_rank():
    """Each of two ranks waits for the other, in a call of its own."""
    late = f"[Rank 0] {hangs.TIMEOUT}: ..."
    records = [rank(0, call(1, peer=1), late), rank(1, call(1, peer=0), late)]
    first, second = hangs.waits(records)
    assert (
        "rank 0 waited at train.py:5 in recv, for rank 1; rank 1 was in recv" in first
    )
    assert "rank 1 waited at train.py:5 in recv, for rank 0" in second


def test_who_failed_otherwise_waited_for_nobody():
    """Its last call was done."""
    assert list(hangs.waits([rank(0, call(3), "ValueError"), rank(1, call(3))])) == []
