"""The backend "shm": the results of gloo, and one sentence when a rank is missing."""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from allranks import Ranks
from allranks.backends import OURS, register
from allranks.backends.segment import CHUNK
from allranks.base.paths import ROOT
from allranks.base.report import RanksError
from allranks.live.capacity import BACKENDS


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="W={}".format)
def ranks(request):
    """Yield 1 to 4 ranks whose group is ours, with one of gloo's beside it."""
    with Ranks(request.param, backend="shm") as ranks:
        ranks.run("gloo = dist.new_group(backend='gloo')")
        yield ranks


@pytest.fixture
def two():
    """Yield two ranks, for a test after which their group is broken."""
    with Ranks(2, backend="shm") as ranks:
        yield ranks


# Small whole numbers, which differ by rank: all orders of adding them give equal bits.
COLLECTIVES = """
def results(size, dtype, group):
    x = ((torch.arange(size) + 3 * rank) % 5).to(dtype)
    total, mean, most, copy = (x.clone() for _ in range(4))
    dist.all_reduce(total, group=group)
    if dtype.is_floating_point:
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    dist.broadcast(copy, world_size - 1, group=group)
    listed = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(listed, x, group=group)
    whole, part = torch.cat(listed), torch.empty_like(x)
    whole.zero_()
    dist.all_gather_single(whole, x, group=group)
    dist.reduce_scatter_single(part, whole * (rank + 1), group=group)
    return [total, mean, most, copy, *listed, whole, part]

dtype = getattr(torch, dtype)
pairs = zip(results(size, dtype, None), results(size, dtype, gloo), strict=True)
[i for i, (ours, theirs) in enumerate(pairs) if not torch.equal(ours, theirs)]
"""


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "uint8"])
@pytest.mark.parametrize("size", [0, 1, 5, 1000, CHUNK // 2 + 3])
def test_each_collective_gives_what_gloo_gives(ranks, size, dtype):
    """The bits are equal, below, at and above the size of a slot."""
    ranks.push({"size": size, "dtype": dtype})
    assert ranks.run(COLLECTIVES) == [[]] * ranks.world_size


def test_all_ranks_get_the_same_bits(ranks):
    """Where rounding depends on the order, all ranks take the same one."""
    source = """
x = torch.randn(CHUNK, generator=torch.Generator().manual_seed(rank))
total = x.clone()
dist.all_reduce(total)
x, total
"""
    ranks.push({"CHUNK": CHUNK})
    pairs = ranks.run(source)
    exact = torch.stack([x for x, _ in pairs]).double().sum(dim=0)
    for _, total in pairs:
        assert torch.equal(total, pairs[0][1])
        torch.testing.assert_close(total, exact.float(), rtol=0, atol=1e-5)


def test_a_tensor_with_gaps_is_reduced_in_place(ranks):
    """Only on one rank is it transposed, so the choice must not be each rank's own."""
    source = """
x = torch.arange(12.).view(3, 4) + rank
x = x if rank else x.t().contiguous().t()
dist.all_reduce(x)
root = torch.full((4, 2), float(rank)).t()
dist.broadcast(root, 0)
x, root
"""
    world_size = ranks.world_size
    want = world_size * torch.arange(12.0).view(3, 4) + sum(range(world_size))
    for x, root in ranks.run(source):
        assert torch.equal(x, want)
        assert torch.equal(root, torch.zeros(2, 4))


def test_what_it_does_not_do_itself_goes_to_gloo(ranks):
    """Point-to-point, scatter, objects, and sub-groups of a world of ours."""
    source = """
right, left = (rank + 1) % world_size, (rank - 1) % world_size
got, piece = torch.zeros(2), torch.zeros(2)
ops = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), right)]
ops.append(dist.P2POp(dist.irecv, got, left))
for work in dist.batch_isend_irecv(ops) if world_size > 1 else []:
    work.wait()
rows = list(torch.arange(2. * world_size).view(-1, 2)) if rank == 0 else None
dist.scatter(piece, rows, 0)
objects = [None] * world_size
dist.all_gather_object(objects, {"rank": rank})
mine, _ = dist.new_subgroups(1)
alone = torch.ones(3)
dist.all_reduce(alone, group=mine)
dist.get_backend(), got[0].item(), piece.tolist(), objects, alone.tolist()
"""
    num = ranks.world_size
    told = [{"rank": r} for r in range(num)]
    assert ranks.run(source) == [
        ("shm", float((r - 1) % num), [2.0 * r, 2.0 * r + 1], told, [1.0] * 3)
        for r in range(num)
    ]


TRAIN = """
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch import nn

def train(group, wrap):
    torch.manual_seed(rank)
    layers = nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Linear(50, 3)
    net = nn.Sequential(*layers).double()
    net = wrap(net, group)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    x = torch.randn(5, 8, 20, generator=torch.Generator().manual_seed(rank))
    for batch in x.double():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    whole = [getattr(p, "full_tensor", p.clone)() for p in net.parameters()]
    return torch.cat([p.detach().flatten() for p in whole])

def ddp(net, group):
    return nn.parallel.DistributedDataParallel(net, process_group=group)

def fsdp2(net, group):
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.1)
    return fully_shard(net, mesh=DeviceMesh.from_group(group, "cpu"))

[(train(g, ddp), train(g, fsdp2)) for g in (dist.group.WORLD, gloo)]
"""


def test_ddp_and_fsdp2_train_on_it_as_they_are(ranks):
    """The weights are gloo's: bit for bit on one and two ranks, else up to rounding."""
    for ours, theirs in ranks.run(TRAIN):
        for one, other in zip(ours, theirs, strict=True):
            near = 0 if ranks.world_size < 3 else 1e-12
            torch.testing.assert_close(one, other, rtol=near, atol=near)


def test_different_collectives_end_with_both_names(two):
    """A mismatch is no garbage and no hang: both ranks say who called what."""
    source = """
def attempt(call, *args):
    try:
        call(*args)
    except RuntimeError as error:
        return str(error)

groups = [dist.new_group(backend="shm") for _ in range(2)]
(
    attempt(dist.all_reduce, torch.ones(2 + rank), dist.ReduceOp.SUM, groups[0]),
    attempt(dist.barrier, groups[1])
    if rank
    else attempt(dist.all_reduce, torch.ones(1), dist.ReduceOp.SUM, groups[1]),
)
"""
    calls = [f"all_reduce (SUM) with {n} bytes of float32" for n in (8, 12)]
    others = ["all_reduce (SUM) with 4 bytes of float32", "barrier"]
    assert two.run(source) == [
        tuple(
            f"rank {rank} has called {called[rank]}, but rank {1 - rank} "
            f"{called[1 - rank]}"
            for called in (calls, others)
        )
        for rank in range(2)
    ]


MISMATCHES = {
    "dist.all_reduce(torch.ones(1), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank])": [
        "all_reduce (SUM) with 4 bytes of float32",
        "all_reduce (MAX) with 4 bytes of float32",
    ],
    "dist.broadcast(torch.ones(1), rank)": [
        "broadcast with 4 bytes of float32 from rank 0",
        "broadcast with 4 bytes of float32 from rank 1",
    ],
    "dist.all_reduce(torch.ones(2).to([torch.float32, torch.int32][rank]))": [
        "all_reduce (SUM) with 8 bytes of float32",
        "all_reduce (SUM) with 8 bytes of int32",
    ],
    "dist.reduce(torch.ones(1), rank)": [
        "reduce (SUM) with 4 bytes of float32 to rank 0",
        "reduce (SUM) with 4 bytes of float32 to rank 1",
    ],
    "dist.all_to_all_single(x, x.clone()) if rank else dist.all_reduce(x)": [
        "all_reduce (SUM) with 8 bytes of float32",
        "all_to_all of float32",
    ],
}


@pytest.mark.parametrize("call", MISMATCHES)
def test_what_differs_between_two_ranks_is_named(two, call):
    """Also what gloo would do: the ranks meet first, so none waits or gets garbage."""
    first, second = MISMATCHES[call]
    two.run("x = torch.ones(2)")
    with pytest.raises(RanksError) as error:
        two.run(call, timeout=60)
    assert f"rank 0 has called {first}, but rank 1 {second}" in str(error.value)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("dist.broadcast(torch.ones(1), -1)", "from rank -1: ranks 0 to 1"),
        (
            "dist.all_gather_single(torch.zeros(4, dtype=torch.int), torch.ones(2))",
            "2 numbers of torch.float32 on each of 2 ranks do not give 4 of torch.int",
        ),
        (
            "dist.reduce_scatter_single(torch.zeros(2), torch.ones(6))",
            "6 numbers of torch.float32 on each of 2 ranks do not give 2 of",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_the_group_goes_on(two, call, why):
    with pytest.raises(RanksError, match=why):
        two.run(call, timeout=60)
    assert two.run("dist.all_reduce(x := torch.ones(1))\nx.item()") == [2, 2]


ODD = """
import datetime
bare = torch.ones(1).expand(4)
dist.all_reduce(bare)
part = torch.zeros(2, 2).t()
dist.reduce_scatter_single(part, torch.ones(2 * world_size, 2))
many = [torch.ones(2), torch.full((3,), float(rank))]
with dist._coalescing_manager(async_ops=True) as works:
    for x in many:
        dist.all_reduce(x, dist.ReduceOp.MAX)
works.wait()
with dist._coalescing_manager():
    for x in many:
        dist.all_reduce(x)
sparse = torch.sparse_coo_tensor([[rank]], [1.0], (world_size,))
dist.all_reduce(sparse)
work = dist.all_reduce(torch.ones(1), async_op=True)
waited = work.wait(datetime.timedelta(seconds=30)), work.result()[0].item()
bare.tolist(), part.tolist(), [x[0].item() for x in many], sparse.to_dense(), waited
"""


def test_what_gloo_does_it_does(ranks):
    """Expanded and sparse tensors, an output with gaps, coalesced calls, and works."""
    num = ranks.world_size
    most = [num, num * (num - 1)]
    for bare, part, many, dense, waited in ranks.run(ODD, quiet=True):
        assert bare == [num] * 4 and part == [[num] * 2] * 2 and many == most
        assert torch.equal(dense, torch.ones(num)) and waited == (True, num)


def test_chapter_7s_notebook_runs_on_it():
    """Its asynchronous call waits for nobody, or the message after it could not go."""
    cells = json.loads((ROOT / "notebooks/ch7_collectives.ipynb").read_text("utf8"))
    sources = ["".join(cell["source"]) for cell in cells["cells"]]
    sources = [text for text in sources if text.startswith("%%ranks\n")][:6]
    with Ranks(4, backend="shm") as ranks:
        for text in sources:
            ranks.run(text.removeprefix("%%ranks\n"), quiet=True)


def test_a_rank_that_stays_away_is_named_after_the_timeout(two):
    """The others wait as long as the group's timeout says; later calls fail at once."""
    source = """
import datetime
group = dist.new_group(timeout=datetime.timedelta(seconds=0.5), backend="shm")
errors = []
for _ in range(2):
    try:
        rank == 1 or dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        errors.append(str(error))
errors
"""
    late = "rank 1 has not come within 0.5 s"
    wanted = [late, f"this group cannot go on: {late}"]
    assert two.run(source) == [wanted, []]
    again = """
try:
    dist.all_reduce(torch.ones(1), group=group)
except RuntimeError as error:
    said = str(error)
said
"""
    assert two.run(again, on=[1]) == ["rank 0 has given up"]


def test_an_interrupted_rank_leaves_no_half_sum(two):
    """After Ctrl-C inside a collective, the group refuses to go on out of step."""
    source = """
import signal, threading, os
said = None
if rank == 0:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        dist.all_reduce(torch.ones(1))
    except KeyboardInterrupt:
        pass
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        said = str(error)
said
"""
    assert two.run(source) == ["this group cannot go on: KeyboardInterrupt", None]


FOLDERS = Path("/dev/shm"), Path(tempfile.gettempdir())


def ours_in_memory():
    """List what a segment could leave behind."""
    files = (path for folder in FOLDERS for path in folder.glob("shm-allranks-*"))
    return {path.name for path in files}


KILLED = """
import datetime, os, signal, tempfile
from allranks.backends.segment import Segment

def child(rank, path, write):
    store, limit = dist.FileStore(path, 3), datetime.timedelta(seconds=20)
    try:
        segment = Segment(store, rank, 3, limit)
        for step in range(9):
            if rank == 1 and step == when:
                os.kill(os.getpid(), signal.SIGKILL)
            segment.meet("barrier")
    except RuntimeError as error:
        os.write(write, f"{error}\\n".encode())
    os._exit(0)

read, write = os.pipe()
with tempfile.TemporaryDirectory() as folder:
    pids = [os.fork() or child(r, f"{folder}/store", write) for r in range(3)]
    os.close(write)
    ended = [os.waitpid(pid, 0)[1] for pid in pids]
ended, sorted(open(read).read().splitlines())
"""


@pytest.mark.parametrize("when", [0, 1, 7])
def test_a_killed_rank_is_named_and_leaves_nothing(when):
    """SIGKILL frees its lock, which tells the others; the memory has no name."""
    before = ours_in_memory()
    with Ranks(1) as parent:
        parent.push({"when": when})
        [(ended, said)] = parent.run(KILLED)
    assert ended == [0, 9, 0]
    gone, given_up = "rank 1 has ended", {"rank 0 has given up", "rank 2 has given up"}
    assert len(said) == 2 and gone in said and {*said} - {gone} <= given_up
    assert ours_in_memory() == before


def test_a_rank_may_end_right_after_the_last_meeting():
    """Who comes late to look must not take a rank that is done for one that died."""
    source = """
import datetime, os, tempfile, time
from allranks.backends.segment import Segment

class Tired(Segment):
    def _nap(self, *args):  # the other comes and ends before this rank looks
        os.waitpid(other, 0)
        super()._nap(*args)

limit = datetime.timedelta(seconds=20)
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/store"
    if not (other := os.fork()):
        segment = Segment(dist.FileStore(path, 2), 1, 2, limit)
        time.sleep(0.3)  # so that rank 0 naps before it comes
        segment.meet("barrier")
        os._exit(0)
    Tired(dist.FileStore(path, 2), 0, 2, limit).meet("barrier")
"""
    with Ranks(1) as parent:
        parent.run(source)


def test_a_machine_without_room_is_told_so_at_the_start():
    """Memory is asked for when the group begins, so the refusal comes then."""
    source = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    dist.new_group(backend="shm")
except RuntimeError as error:
    said = str(error)
said
"""
    with Ranks(1, backend="shm") as ranks:
        assert ranks.run(source) == ["no 4 MiB of shared memory: File too large"]


def test_functional_collectives_do_not_wait_for_gloo(ranks):
    """DTensor's all_reduce, all_gather and reduce_scatter are carried out here."""
    source = """
import torch.distributed._functional_collectives as functional
from allranks.backends.shm import SharedMemory

called = []
names = "_all_reduce", "_all_gather", "_reduce_scatter"
for name in names:
    def spy(self, *args, own=getattr(SharedMemory, name), name=name):
        called.append(name)
        return own(self, *args)
    setattr(SharedMemory, name, spy)
world, x = dist.group.WORLD, torch.arange(4. * world_size) + rank
results = [
    functional.wait_tensor(work)
    for work in (
        functional.all_reduce(x, "sum", world),
        functional.all_gather_tensor(x, 0, world),
        functional.reduce_scatter_tensor(x, "sum", 0, world),
    )
]
called, results
"""
    num = ranks.world_size
    each = torch.stack([torch.arange(4.0 * num) + rank for rank in range(num)])
    for rank, (called, results) in enumerate(ranks.run(source)):
        assert called == ["_all_reduce", "_all_gather", "_reduce_scatter"]
        assert torch.equal(results[0], each.sum(dim=0))
        assert torch.equal(results[1], each.flatten())
        assert torch.equal(results[2], each.sum(dim=0).view(num, 4)[rank])


def test_a_segment_is_gone_from_memory_with_its_group(two):
    """Destroying a group frees its segment: many groups don't fill the memory."""
    source = """
import gc, os
def segments():
    return sum("memfd:allranks" in line for line in open("/proc/self/maps"))
before = segments()
groups = [dist.new_group(backend="shm") for _ in range(3)]
for group in groups:
    dist.all_reduce(torch.ones(9), group=group)
during = segments()
while groups:
    dist.destroy_process_group(groups.pop())
del group
gc.collect()
during - before, segments() - before
"""
    if not Path("/proc/self/maps").is_file():
        pytest.skip("no /proc here to look into")
    assert two.run(source) == [(3, 0)] * 2


def test_the_names_that_live_ranks_accept_are_the_backends():
    """The list that needs no torch agrees with the one that has the classes."""
    assert set(BACKENDS) == {"gloo", *OURS}


def test_wrong_names_are_refused():
    """One sentence names the value and what there is."""
    with pytest.raises(ValueError, match="no backend 'smh' of ours: shm"):
        register("smh")
    with pytest.raises(ValueError, match="backend 'mpi': choose gloo, shm, link"):
        Ranks(2, backend="mpi")
