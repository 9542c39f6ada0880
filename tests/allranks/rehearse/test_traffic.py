"""What was sent equals the formula, DDP's buckets have names, and waits have ends."""

from allranks.rehearse import records, tables
from tests.allranks.backends.gpus import gpu_ranks

SEND = """
from types import SimpleNamespace
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from allranks.rehearse.replicas import describe_ddp, describe_fsdp
from allranks.rehearse.records import Record
from allranks.rehearse.traffic import Traffic

def layers():
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to(gpu)

def sent(model, passes=4, **models):
    traffic = Traffic(SimpleNamespace(num_steps=0))
    end = nccl.watch(traffic.called)
    for _ in range(passes):
        model(torch.ones(2, 64, device=gpu)).sum().backward()
    end()
    sent = list(traffic.collectives.values())
    about = {name: [describe(model)] for name, describe in models.items()}
    return Record(
        rank=rank, num_backwards=passes, num_steps=passes, collectives=sent, **about
    )

torch.cuda.set_device(rank)
mesh = DeviceMesh.from_group(group, "cuda")
net = layers()
for part in net:
    fully_shard(part, mesh=mesh)
fully_shard(net, mesh=mesh)
fsdp = sent(net, fsdp=describe_fsdp)
net = layers()
fully_shard(net, mesh=mesh)  # all in the root, which stays gathered after forward
root = sent(net, fsdp=describe_fsdp)
net = layers()
net[1].requires_grad_(False)
size = 2 * 4 * (64 * 64 + 64) / 2**20
ddp = nn.parallel.DistributedDataParallel(net, process_group=group, bucket_cap_mb=size)
ddp = sent(ddp, ddp=describe_ddp)
fsdp, root, ddp
"""


def test_what_ddp_and_fsdp_send_is_what_the_formula_says():
    """Of four layers, DDP averages three, in buckets; FSDP2 gathers each twice."""
    with gpu_ranks(2) as ranks:
        fsdp, root, ddp = zip(*ranks.run(SEND), strict=True)
    assert tables.formulas(ddp).rows == [
        ["DDP, all_reduce", "49.9 kB", "49.9 kB", "49.9 kB, the same", "ranks 0–1"]
    ]
    assert tables.formulas(fsdp).rows == [
        [f"FSDP2, {op}", "66.6 kB", law, counted, "ranks 0–1"]
        for op, law, counted in (
            ("all_gather", "66.6 kB + 66.6 kB again", "133 kB, the same"),
            ("reduce_scatter", "66.6 kB", "66.6 kB, the same"),
        )
    ]
    assert tables.formulas(root).rows[0][2:4] == ["66.6 kB", "66.6 kB, the same"]
    assert tables.buckets(ddp).rows == [
        ["1", "33.3 kB", "4", "3.bias", "2.weight", "ranks 0–1"],
        ["2", "16.6 kB", "2", "0.bias", "0.weight", "ranks 0–1"],
    ]


def test_twice_the_bytes_are_not_called_the_same():
    """The same record with half as many backward passes."""
    call = records.Collective(
        op="all_reduce",
        num_bytes=100,
        group=[0, 1],
        line="",
        in_backward=True,
        times=8,
    )
    model = records.DdpModel(100, 1, [0, 1])
    one = records.Record(rank=0, ddp=[model], collectives=[call])

    def counted(backwards, steps):
        one.num_backwards, one.num_steps = backwards, steps
        return [row[3] for row in tables.formulas([one]).rows]

    assert counted(4, 4) == ["200 B, 2 times that"]
    told = "50 B, 0.5 times that: once in a step, which has 2 passes"
    assert counted(16, 8) == [told]  # under no_sync
    one.ddp.append(model)  # whose all_reduce was it?
    assert counted(4, 4) == []
