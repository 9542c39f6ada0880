"""The backend "link": gloo's results, never earlier than the link would have them."""

import os
import subprocess
import sys

import pytest
import torch

from allranks import Ranks
from allranks.base.report import RanksError
from allranks.live.capacity import check_possible
from allranks.topics.links.network import parse
from allranks.topics.links.sums import seconds
from tests.allranks.backends.test_shm import COLLECTIVES, ODD, TRAIN

SLOW = "link:2000us+0.01GB/s"  # a message 2 ms, 100 kB 10 ms: this machine is faster
ALPHA, BANDWIDTH = 2e-3, 1e7


@pytest.fixture(scope="module", params=[2, 3], ids="W={}".format)
def ranks(request):
    """Yield ranks on a slow link, with a group of gloo's beside it."""
    with Ranks(request.param, backend=SLOW) as ranks:
        ranks.run("gloo = dist.new_group(backend='gloo')")
        yield ranks


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("size", [1, 1000])
def test_each_collective_gives_what_gloo_gives(ranks, size, dtype):
    """It has gloo do the work, so all bits are equal."""
    ranks.push({"size": size, "dtype": dtype})
    assert ranks.run(COLLECTIVES) == [[]] * ranks.world_size


CALLS = {
    "all_reduce": "dist.all_reduce(x)",
    "broadcast": "dist.broadcast(x, 0)",
    "all_gather": "dist.all_gather_single(x, x[:n // world_size])",
    "reduce_scatter": "dist.reduce_scatter_single(x[:n // world_size], x.clone())",
    "all_to_all": "dist.all_to_all_single(x, x.clone())",
    "barrier": "dist.barrier()",
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_done_before_the_link_has_done_it(ranks, name):
    """Whatever else runs here, a collective takes the modeled time at least."""
    num = 12_000
    source = f"""
import time
n = {num}
x = torch.ones(n)
gloo_barrier = dist.barrier(group=gloo)
start = time.monotonic()
{CALLS[name]}
time.monotonic() - start
"""
    num_bytes = 0 if name == "barrier" else 4 * num
    takes = seconds(name, num_bytes, ranks.world_size, ALPHA, BANDWIDTH)
    assert takes >= ALPHA
    assert min(ranks.run(source)) > 0.999 * takes


def test_collectives_queue_for_the_link_and_do_not_block(ranks):
    """Two started at once take twice as long as one; the caller goes on meanwhile."""
    source = """
import time
x, y = torch.ones(20_000), torch.ones(20_000)
dist.barrier()
start = time.monotonic()
works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)]
begun, pending = time.monotonic() - start, not works[1].is_completed()
for work in works:
    work.wait()
begun, pending, time.monotonic() - start, x[0].item()
"""
    one = seconds("all_reduce", 80_000, ranks.world_size, ALPHA, BANDWIDTH)
    for begun, pending, total, value in ranks.run(source):
        assert total > 1.999 * one and value == ranks.world_size
        assert pending or begun > one  # a busy machine may come back late


def test_messages_leave_one_after_the_other(ranks):
    """Two messages of 5 ms each, to the same rank: the second comes after 12 ms."""
    source = """
import time
x = [torch.full((12_500,), float(i)) for i in (1, 2)]
dist.barrier()
start = time.monotonic()
if rank == 0:
    works = [dist.isend(one, 1, tag=i) for i, one in enumerate(x)]
elif rank == 1:
    works = [dist.irecv(one.zero_(), 0, tag=i) for i, one in enumerate(x)]
else:
    works = []
for work in works:
    work.wait()
start, time.monotonic(), x[1][0].item()
"""
    (start, sent, _), (_, received, value), *_ = ranks.run(source)
    assert sent - start > 0.0099 and received - start > 0.0119 and value == 2


def test_ddp_and_sub_groups_train_as_on_gloo(ranks):
    """Unmodified DDP gets gloo's gradients, also in a group of some of the ranks."""
    source = """
from torch.nn.parallel import DistributedDataParallel
pair = dist.new_group([0, 1])
found = []
for group in (None, gloo, pair):
    torch.manual_seed(0)
    model = torch.nn.Linear(30, 30)
    if group is pair and rank > 1:
        continue
    ddp = DistributedDataParallel(model, process_group=group)
    ddp(torch.full((4, 30), float(rank))).square().sum().backward()
    found.append(model.weight.grad)
objects = [None] * world_size
dist.all_gather_object(objects, rank)
names = [dist.get_backend(group) for group in (None, pair)[: 1 + (rank < 2)]]
torch.equal(found[0], found[1]), objects, names
"""
    ids = list(range(ranks.world_size))
    for rank, (same, objects, names) in enumerate(ranks.run(source)):
        assert same and objects == ids
        assert names == ["link"] * (2 if rank < 2 else 1)


def test_ddp_and_fsdp2_train_on_it_as_they_are(ranks):
    """The weights are gloo's, bit for bit."""
    for ours, theirs in ranks.run(TRAIN, timeout=120):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


def test_a_hierarchy_is_faster_than_a_flat_sum():
    """Two nodes of two ranks: inside it is fast, so the network carries half."""
    network = "link:inside=100us+1GB/s,across=2000us+0.005GB/s,per_node=2"
    source = """
import time
nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
rails = [dist.new_group([0, 2]), dist.new_group([1, 3])]
flat, hierarchical, part = [], [], torch.zeros(10_000)
for _ in range(8):
    x, y = torch.ones(20_000), torch.ones(20_000)
    dist.barrier()
    start = time.monotonic()
    dist.all_reduce(x)
    flat.append(time.monotonic() - start)
    dist.barrier()
    start = time.monotonic()
    dist.reduce_scatter_single(part, y, group=nodes[rank // 2])
    dist.all_reduce(part, group=rails[rank % 2])
    dist.all_gather_single(y, part, group=nodes[rank // 2])
    hierarchical.append(time.monotonic() - start)
min(flat), min(hierarchical), torch.equal(x, y)
"""
    with Ranks(4, backend=network) as ranks:
        found = ranks.run(source)
    slow, half = (parse(network.partition(":")[2]).across, (ALPHA, 5e6))
    assert slow.gb_per_s == 0.005
    for flat, hierarchical, same in found:
        assert same and flat > 0.999 * seconds("all_reduce", 80_000, 4, *half)
        assert hierarchical > 0.999 * seconds("all_reduce", 40_000, 2, *half)
    # 36 ms against 12: a busy machine adds to both, but not each of eight times.
    assert min(one[1] for one in found) < min(one[0] for one in found)


def test_a_rank_that_died_ends_the_others():
    """The one that waits gets gloo's error, and no result."""
    source = "import os\nos._exit(3) if rank else dist.all_reduce(torch.ones(1))"
    with Ranks(2, backend=SLOW) as ranks:
        ranks.run("dist.all_reduce(torch.ones(1))")
        with pytest.raises(RanksError, match=r"(?s)rank 0:.*(closed|reset) by peer"):
            ranks.run(source, timeout=60)


def test_a_destroyed_group_leaves_no_thread(ranks):
    source = """
import gc
import threading
import time

def links():
    return sum(one.name == "link" for one in threading.enumerate())

before = links()
more = dist.new_group(list(range(world_size)))
dist.all_reduce(torch.ones(1), group=more)
with_it = links()
dist.destroy_process_group(more)
del more
gc.collect()
until = time.monotonic() + 20
while links() > before and time.monotonic() < until:
    time.sleep(0.01)
with_it - before, links() - before
"""
    assert ranks.run(source) == [(1, 0)] * ranks.world_size


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "name one, such as nvlink4 or pcie5"),
        ("lan", "link 'lan': there are nvlink4, "),
        ("0us+1GB/s", "us '0' must be a number above 0"),
        ("eth1,slower=-1", "slower '-1' must be a number above 0"),
        ("eth1,inside=pcie5", "inside and per_node go together"),
        ("eth1,inside=pcie5,per_node=1.5", "per_node must be a whole number"),
        ("eth1,speed=3", "speed is none of"),
        ("eth1,eth25", "across is both eth1 and eth25: name one"),
        ("eth1,slower=2,slower=3", "slower is both 2 and 3: name one"),
    ],
)
def test_what_is_no_link_gets_a_sentence(text, why, monkeypatch):
    monkeypatch.delenv("ALLRANKS_LINK", raising=False)
    with pytest.raises(ValueError, match="link") as caught:
        check_possible(2, "cpu", f"link:{text}")
    assert why in str(caught.value) and "\n" not in str(caught.value)


LATE = """
import warnings
group = dist.distributed_c10d._get_default_group()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(60):
        group._sleep_until(time.monotonic() + 2e-3, 2e-3)
    before = len(said)
    for _ in range(late):
        group._sleep_until(time.monotonic() - 0.02, 1e-6)
before, [str(one.message) for one in said]
"""


@pytest.mark.parametrize("late", [20, 60])
def test_a_machine_that_falls_behind_the_link_says_so(late):
    """At whatever call, once, though many before were in time."""
    with Ranks(1, backend="link:nvlink4") as ranks:
        ranks.push({"late": late})
        [(before, said)] = ranks.run("import time" + LATE)
    assert before == 0 and len(said) == 1 and "make that slower" in said[0]


BUSY = """
import time, warnings
group = dist.distributed_c10d._get_default_group()
on_time = group._sleep_until
group._sleep_until = lambda end, *more: on_time(end - 0.05, *more)  # busy till now
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(10):
        dist.all_reduce(torch.ones(4))
[str(one.message) for one in said]
"""


def test_a_group_of_one_rank_is_on_no_link_to_fall_behind():
    with Ranks(1, backend="link:nvlink4") as ranks:
        assert ranks.run(BUSY) == [[]]


CALLS_ON = """
from torch.distributed import _functional_collectives as functional

def then(future):
    gather = functional.all_gather_into_tensor_coalesced
    scatter = functional.reduce_scatter_tensor_coalesced
    mine = torch.full((2,), rank + 1.0)
    outs = gather([mine, mine], dist.group.WORLD)
    outs += scatter([torch.ones(world_size)], "sum", [0], dist.group.WORLD)
    return [functional.wait_tensor(out).sum().item() for out in outs]

work = dist.all_reduce(torch.ones(1), async_op=True)
future = work.get_future().then(then)
dist.all_reduce(torch.ones(3))
future.wait()
"""


def test_a_callback_may_call_coalesced_collectives(ranks):
    num = ranks.world_size
    gathered = float(num * (num + 1))
    expected = [gathered, gathered, float(num)]
    assert ranks.run(CALLS_ON, timeout=20, quiet=True) == [expected] * num


HOOKED = """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01)
state = power.PowerSGDState(None, 2, start_powerSGD_iter=2)
ddp.register_comm_hook(state, power.powerSGD_hook)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
for _ in range(6):
    optimizer.zero_grad()
    ddp(torch.randn(8, 64) + rank).square().mean().backward()
    optimizer.step()
torch.cat([p.detach().flatten() for p in net.parameters()])
"""


def test_powersgd_trains_on_it_in_several_buckets():
    """Its callbacks wait for collectives of their own, the same ones on all ranks.

    With so many buckets plain gloo hangs or aborts: its threads all wait in callbacks.
    Often, since a quick rank adds a callback when the work has ended already.
    """
    found = []
    for backend in "link:eth1", "shm":
        with Ranks(2, backend=backend) as ranks:
            for _ in range(20):
                found += ranks.run(HOOKED, timeout=60, quiet=True)
    assert all(torch.equal(one, found[0]) for one in found)


def test_what_gloo_does_it_does(ranks):
    """Coalesced calls, sparse tensors, results and sources."""
    num = ranks.world_size
    for *_, many, dense, waited in ranks.run(ODD, quiet=True):
        assert many == [num, num * (num - 1)]
        assert torch.equal(dense, torch.ones(num)) and waited == (True, num)


def test_the_model_is_the_ring_of_the_sums():
    assert seconds("all_reduce", 800, 4, 1.0, 100.0) == 2 * 3 * (1 + 2)
    assert seconds("broadcast", 800, 5, 1.0, 100.0) == 3 * (1 + 8)
    assert seconds("all_reduce", 800, 1, 1.0, 100.0) == 0


ENDS = """
import gc, os, sys
import torch
import torch.distributed as dist
from allranks import backends

name, failed = backends.register("link:eth1"), 0
gc.freeze()  # else each child looks through all of torch for garbage, for a second
for turn in range(12):
    children = []
    for rank in range(2):
        if child := os.fork():
            children.append(child)
            continue
        store = dist.FileStore(f"{sys.argv[1]}/{turn}", 2)
        dist.init_process_group(name, store=store, rank=rank, world_size=2)
        x, peer = torch.ones(100_000), 1 - rank
        works = [dist.isend(x, peer), dist.irecv(torch.empty_like(x), peer)]
        for work in works:
            work.wait()
        dist.all_reduce(x)
        sys.exit(0)  # at once, while threads still come back from their work
    failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
print("failed:", failed)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac's torch must not be forked")
def test_a_process_that_ends_at_once_ends_in_peace(tmp_path):
    """Python ends threads at exit, and C++ beneath them would answer with an abort."""
    env = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", ENDS, str(tmp_path)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert run.stdout == "failed: 0\n" and "terminate" not in run.stderr
