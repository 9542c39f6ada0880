"""The backend "nccl": the results of gloo, and what gloo lacks, on virtual GPUs."""

import pytest
import torch

from tests.allranks.backends.gpus import gpu_ranks


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield 1 to 3 ranks on a GPU each."""
    with gpu_ranks(request.param) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three():
    """Yield three ranks on a GPU each."""
    with gpu_ranks(3) as ranks:
        yield ranks


# Small whole numbers, which differ by rank: all orders of adding them give equal bits.
COLLECTIVES = """
def results(dtype, to, group):
    x = ((torch.arange(4 * world_size) + 3 * rank) % 5).to(dtype).to(to)
    total, mean, most, copy, root = (x.clone() for _ in range(5))
    dist.all_reduce(total, group=group)
    if dtype.is_floating_point:
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    dist.broadcast(copy, world_size - 1, group=group)
    dist.reduce(root, 0, group=group)
    if rank and group is gloo:
        root = x  # NCCL leaves what other ranks give as it was
    listed = [torch.zeros_like(x) for _ in range(world_size)]
    dist.all_gather(listed, x, group=group)
    whole, part = torch.cat(listed).zero_(), torch.zeros_like(x)
    dist.all_gather_single(whole, x, group=group)
    dist.reduce_scatter_single(part, whole * (rank + 1), group=group)
    parts, mine = list(whole.chunk(world_size)), torch.zeros_like(x)
    dist.reduce_scatter(mine, [p.clone() for p in parts], group=group)
    mixed = torch.zeros_like(x)
    dist.all_to_all_single(mixed, x, group=group)
    came = [torch.zeros_like(x[:4]) for _ in range(world_size)]
    dist.all_to_all(came, [c.clone() for c in x.chunk(world_size)], group=group)
    at_root = [torch.zeros_like(x) for _ in range(world_size)] if rank == 0 else None
    dist.gather(x, at_root, 0, group=group)
    dealt = torch.zeros_like(x)
    given = [p.clone() for p in parts] if rank == 0 else None
    dist.scatter(dealt, given, 0, group=group)
    return [
        *(total, mean, most, copy, root, whole, part, mine, mixed, dealt),
        *(*listed, *came, *(at_root or [])),
    ]

ours, theirs = results(dtype, gpu, group), results(dtype, "cpu", gloo)
wrong = [i for i, (a, b) in enumerate(zip(ours, theirs)) if not torch.equal(a.cpu(), b)]
wrong, {str(tensor.device) for tensor in ours} == {gpu}
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "uint8"])
def test_each_collective_gives_what_gloo_gives(ranks, dtype):
    """The bits are equal, and what comes stays on the rank's GPU."""
    ranks.push({"dtype": getattr(torch, dtype)})
    assert ranks.run(COLLECTIVES) == [([], True)] * ranks.world_size


def test_what_gloo_lacks_is_built(three):
    """Uneven lists, bools, 8-bit floats, means of integers and factors work."""
    source = """
def on_gpu(*values, **options):
    return torch.tensor(values, **options).to(gpu)

out = {}
lists = [torch.zeros(1 + r).to(gpu) for r in range(3)]
dist.all_gather(lists, on_gpu(*[float(rank)] * (1 + rank)), group=group)
out["uneven gather"] = [each.tolist() for each in lists]
mine = torch.zeros(1 + rank).to(gpu)
dist.reduce_scatter(mine, [torch.ones(1 + r).to(gpu) for r in range(3)], group=group)
out["uneven scatter"] = mine.tolist()
x = on_gpu(rank == 0, False, True)
dist.all_reduce(x, group=group)
out["or"] = x.tolist()
x = on_gpu(rank, 4 * rank + 1)
dist.all_reduce(x, dist.ReduceOp.AVG, group=group)
out["mean"] = x.tolist()
half = torch._C._distributed_c10d._make_nccl_premul_sum(0.5)
x = on_gpu(1.0, 2.0)
dist.all_reduce(x, half, group=group)
part = torch.zeros(1).to(gpu)
given = on_gpu(1.0, 2.0, 3.0)
dist.reduce_scatter_single(part, given, half, group=group)
out["premul"] = x.tolist(), part.tolist(), given.tolist()
x = on_gpu(float(rank)).to(torch.float8_e4m3fn)
whole = torch.zeros(3, dtype=torch.float8_e4m3fn).to(gpu)
dist.all_gather_single(whole, x, group=group)
out["float8"] = whole.float().tolist()
sizes = [(rank + r) % 3 for r in range(3)]
x, came = torch.full((3, 2), rank).to(gpu), torch.zeros(3, 2, dtype=int).to(gpu)
dist.all_to_all_single(came, x, sizes, sizes, group=group)
out["uneven exchange"] = came[:, 0].tolist()
out
"""
    for rank, out in enumerate(three.run(source)):
        assert out["uneven gather"] == [[0.0], [1.0] * 2, [2.0] * 3]
        assert out["uneven scatter"] == [3.0] * (1 + rank)
        assert out["or"] == [True, False, True]
        assert out["mean"] == [1, 5]
        assert out["premul"] == ([1.5, 3.0], [1.5 * (rank + 1)], [1.0, 2.0, 3.0])
        assert out["float8"] == [0.0, 1.0, 2.0]
        expected = [r for r in range(3) for _ in range((rank + r) % 3)]
        assert out["uneven exchange"] == expected


def test_messages_ignore_tags_and_batches_end_as_one(three):
    """NCCL has no tags, sends to itself in a batch, and gives one work for a batch."""
    source = """
right, left = (rank + 1) % 3, (rank - 1) % 3
ops, came = [], torch.zeros(2).to(gpu)
ops.append(dist.P2POp(dist.irecv, came[:1], left, group, tag=4))
ops.append(dist.P2POp(dist.isend, torch.tensor([float(rank)]).to(gpu), right, group))
ops.append(dist.P2POp(dist.irecv, came[1:], rank, group))
ops.append(dist.P2POp(dist.isend, torch.tensor([rank + 0.5]).to(gpu), rank, group))
works = dist.batch_isend_irecv(ops)
for work in works:
    work.wait()
first = came.tolist()
if rank == 0:
    dist.send(came, 1, group, tag=1)
elif rank == 1:
    dist.recv(came, 0, group, tag=2)
len(works), first, came.tolist()
"""
    zero = [2.0, 0.5]
    for rank, (num_works, first, last) in enumerate(three.run(source)):
        assert (num_works, first) == (1, [(rank - 1) % 3, rank + 0.5])
        assert last == (zero if rank < 2 else first)


def test_coalesced_and_functional_collectives(three):
    """What DTensor and the coalescing manager call stays on the GPU, too."""
    source = """
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

rows = torch.arange(6.0).view(3, 2).to(gpu) * (rank + 1)
made = [
    functional.wait_tensor(functional.all_reduce(rows, "sum", group)),
    functional.wait_tensor(functional.all_gather_tensor(rows[:1], 0, group)),
    functional.wait_tensor(functional.reduce_scatter_tensor(rows, "avg", 0, group)),
    functional.wait_tensor(functional.broadcast(rows, 1, group)),
    functional.wait_tensor(functional.all_to_all_single(rows, None, None, group)),
]
one, two = torch.ones(1).to(gpu), torch.ones(2).to(gpu)
with _coalescing_manager(group, async_ops=True) as manager:
    dist.all_reduce(one, group=group)
    dist.all_reduce(two, group=group)
manager.wait()
[t.cpu() for t in made], {str(t.device) for t in made}, one.tolist() + two.tolist()
"""
    rows = torch.arange(6.0).view(3, 2)
    for rank, (made, where, sums) in enumerate(three.run(source)):
        total, gathered, part, copy, mixed = made
        assert torch.equal(total, 6 * rows)
        assert torch.equal(gathered, torch.stack([rows[0] * (r + 1) for r in range(3)]))
        assert torch.equal(part, 2 * rows[rank : rank + 1])
        assert torch.equal(copy, 2 * rows)
        assert torch.equal(mixed, torch.stack([rows[rank] * r for r in (1, 2, 3)]))
        assert where == {f"cuda:{rank}"}
        assert sums == [3.0] * 3


def test_each_call_is_told_with_its_bytes_and_its_group(three):
    """A listener learns the op, n, the group by ranks of the job, and the peer."""
    source = """
calls = []
stop = nccl.watch(calls.append)
pair = dist.new_group([1, 2], backend="nccl")
x = torch.ones(3, 2, dtype=torch.float16).to(gpu)
dist.all_gather_single(torch.zeros(9, 2, dtype=torch.float16).to(gpu), x, group=group)
dist.all_reduce(x, group=group, async_op=True).wait()
if rank:
    dist.send(x, 2, pair) if rank == 1 else dist.recv(x, 1, pair)
stop()
dist.all_reduce(x, group=group)
[(c.op, c.num_bytes, c.shapes, c.group, c.peer, str(c.dtype), c.device) for c in calls]
"""
    for rank, calls in enumerate(three.run(source)):
        same = [((3, 2),), (0, 1, 2), None, "torch.float16", f"cuda:{rank}"]
        assert calls[:2] == [("all_gather", 36, *same), ("all_reduce", 12, *same)]
        last = [((3, 2),), (1, 2), 2, "torch.float16", "cuda:1"]
        if rank == 2:
            last = [(), (1, 2), 1, "torch.float16", "cuda:2"]
        word = {1: "send", 2: "recv"}.get(rank)
        assert calls[2:] == ([(word, 12, *last)] if rank else [])


def test_work_that_is_dropped_frees_its_memory(three):
    """Neither the group nor gloo keeps a tensor whose collective has ended.

    A thread of gloo's lets go of it a moment later.
    """
    source = """
import gc, time
x = work = None
gc.collect()
before = torch.cuda.memory_allocated(gpu)
for wait in (False, True):
    x = torch.ones(1 << 16).to(gpu)
    work = dist.all_reduce(x, group=group, async_op=wait)
    if wait:
        work.wait()
    del x, work
gc.collect()
until = time.monotonic() + 5
while (left := torch.cuda.memory_allocated(gpu) - before) and time.monotonic() < until:
    time.sleep(0.01)
left
"""
    assert three.run(source) == [0] * 3
