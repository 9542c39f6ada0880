"""What NCCL refuses is refused, in its own sentence; and what a hang says."""

import tempfile
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from allranks.backends.nccl import agreement, meeting
from allranks.base.report import RanksError
from tests.allranks.backends.gpus import gpu_ranks


@pytest.fixture(scope="module")
def two():
    """Yield two ranks on a GPU each, whose group stays whole."""
    with gpu_ranks(2) as ranks:
        yield ranks


@pytest.fixture
def fresh():
    """Yield two ranks on a GPU each, for a test after which their group is broken."""
    with gpu_ranks(2) as ranks:
        yield ranks


REFUSED = {
    "dist.all_reduce(torch.ones(2), group=group)": (
        "RuntimeError: No backend type associated with device type cpu"
    ),
    "dist.all_gather([torch.ones(2)] * 2, x, group=group)": (
        "ValueError: Tensors must be CUDA and dense"
    ),
    "dist.all_reduce(torch.ones(4, 4).to(gpu)[:, 1:3], group=group)": (
        "ValueError: Tensors must be contiguous"
    ),
    "dist.all_reduce(x.short(), group=group)": (
        "TypeError: Input tensor data type is not supported for NCCL process group: "
        "Short"
    ),
    "dist.all_reduce(x.int(), dist.ReduceOp.BAND, group=group)": (
        "ValueError: Cannot use ReduceOp.BAND with NCCL"
    ),
    "dist.all_reduce(x.bool(), dist.ReduceOp.AVG, group=group)": (
        "TypeError: Cannot use ReduceOp.AVG with boolean inputs"
    ),
    "dist.all_reduce(x.int(), half, group=group)": (
        "TypeError: PreMulSum Data type must be half, float, bfloat16 or double"
    ),
    "dist.all_reduce(x.to(torch.float8_e5m2), group=group)": (
        "TypeError: Unsupported Float8 type for NCCL reduction"
    ),
    "dist.all_gather_single(x, x, group=group)": (
        "ValueError: output tensor size must be equal to world_size times input tensor "
        "size"
    ),
    "dist.reduce_scatter_single(x, x, group=group)": (
        "ValueError: input tensor must be the same size as output size times world size"
    ),
    "dist.all_gather_single(torch.ones(4).to(gpu), x.double(), group=group)": (
        "TypeError: output tensor must have the same type as input tensor"
    ),
    "dist.all_gather([x.to(other), x.to(other)], x, group=group)": (
        "ValueError: Expected list of tensors on the same device"
    ),
    "dist.recv(x, group=group)": (
        "RuntimeError: ProcessGroupNCCL does not support recvAnysource"
    ),
    "dist.monitored_barrier(group)": (
        "ValueError: monitored_barrier is only implemented for GLOO backend."
        if torch.__version__.startswith("2.13.")
        else "ValueError: monitored_barrier requires a group with a CPU-capable "
        "backend (e.g. GLOO)."
    ),
}


@pytest.mark.parametrize("call", REFUSED)
def test_a_broken_rule_gives_the_sentence_of_a_gpu_job(two, call):
    """The call ends with NCCL's or c10d's own error, and the group can go on."""
    source = f"""
half = torch._C._distributed_c10d._make_nccl_premul_sum(0.5)
x, other = torch.ones(2).to(gpu), f"cuda:{{1 - rank}}"
said = error(lambda: {call})
x = torch.ones(2).to(gpu)
dist.all_reduce(x, group=group)
said, x.tolist()
"""
    assert two.run(source) == [(REFUSED[call], [2.0, 2.0])] * 2


def test_a_channels_last_tensor_is_contiguous_enough(two):
    """Like c10d, it takes any order of the numbers that has a name and no gaps."""
    source = """
x = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).to(gpu)
dist.all_reduce(x, group=group)
x.sum().item(), x.is_contiguous()
"""
    assert two.run(source) == [(240.0, False)] * 2


def test_two_ranks_on_one_gpu_are_told_so_on_both_and_may_come_again(fresh):
    """The first collective says it, as NCCL does when it makes a communicator."""
    source = "error(dist.all_reduce, torch.ones(1).to('cuda:0'), group=group)"
    again = """
import time
time.sleep(0.2 * rank)  # the other must not read what this one said the first time
x = torch.ones(1).to(gpu)
dist.all_reduce(x, group=group)
x.item()
"""
    for rank, said in enumerate(fresh.run(source)):
        assert said.startswith("DistBackendError: NCCL error")
        assert said.splitlines()[-1] == (
            f"Duplicate GPU detected : rank {rank} and rank {1 - rank} both on CUDA "
            "device 1000"
        )
    assert fresh.run(again) == [2.0, 2.0]


def test_a_rank_that_goes_lets_the_others_hear_why():
    """Who leaves at once may take the store along, and with it what others read."""
    store, order = dist.HashStore(), []
    first, second = (
        meeting.Meeting(store, rank, 2, timedelta(seconds=20)) for rank in range(2)
    )
    slow = second._store

    class Slow:
        set, wait, add = slow.set, slow.wait, slow.add

        def multi_get(self, names):
            time.sleep(0.2)
            order.append("read")
            return slow.multi_get(names)

    second._store = Slow()

    def hold(which):
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU"):
            which.hold(SimpleNamespace(index=0))
        order.append("gone")

    other = threading.Thread(target=hold, args=(second,))
    other.start()
    hold(first)
    other.join()
    assert order == ["read", "gone", "gone"]


def test_hosts_and_visible_devices_tell_gpus_apart(fresh):
    """An equal index is no duplicate on another host, or behind another mask."""
    source = """
import os
os.environ[name] = values[rank]
x = torch.ones(1).to("cuda:0")
dist.all_reduce(x, group=dist.new_group(backend="nccl"))
del os.environ[name]
x.item()
"""
    settings = {
        "ALLRANKS_HOST": ["node0", "node1"],
        "CUDA_VISIBLE_DEVICES": ["1,0", "0,1"],
    }
    for name, values in settings.items():
        fresh.push({"name": name, "values": values})
        assert fresh.run(source) == [2.0, 2.0]


def test_a_rank_that_does_not_come_is_the_watchdogs_case(fresh):
    """A timeout has the watchdog's sentence, with the call's number and size."""
    source = """
nccl.set_patience(0.3)
late = dist.new_group(backend="nccl")
x = torch.ones(5).to(gpu)
dist.all_reduce(x, group=late)
rank == 1 or error(dist.all_gather_single, torch.ones(10).to(gpu), x, group=late)
"""
    said, _ = fresh.run(source)
    start = (
        "DistBackendError: [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=_ALLGATHER_BASE, NumelIn=5, NumelOut=10, "
        "Timeout(ms)=600000) ran for 600"
    )
    assert said.startswith(start)
    assert "milliseconds before timing out. (The rehearsal waited for 0." in said


DIFFERENT = {
    "dist.all_reduce(x[:5 - rank], group=group)": (
        "all_reduce (sum of 5, float32)",
        "all_reduce (sum of 4, float32)",
    ),
    "dist.all_reduce(x, kinds[rank], group=group)": (
        "all_reduce (avg of 5, float32)",
        "all_reduce (max of 5, float32)",
    ),
    "dist.all_reduce(x, group=group) if rank else dist.barrier(group)": (
        "barrier (1, uint8)",
        "all_reduce (sum of 5, float32)",
    ),
    "dist.broadcast(x.double() if rank else x, rank, group=group)": (
        "broadcast (5 from rank 0, float32)",
        "broadcast (5 from rank 1, float64)",
    ),
    "dist.all_gather([torch.ones_like(x[rank:])] * 2, x[rank:].clone(), group=group)": (
        "all_gather (5, float32)",
        "all_gather (4, float32)",
    ),
}


@pytest.mark.parametrize("call", DIFFERENT)
def test_ranks_that_call_different_things_are_told_so(two, call):
    """NCCL would hang and gloo end the process; here both raise, and can go on."""
    source = f"""
x, kinds = torch.ones(5).to(gpu), (dist.ReduceOp.AVG, dist.ReduceOp.MAX)
said = error(lambda: {call})
dist.all_reduce(x, group=group)
said, x[0].item()
"""
    first, second = DIFFERENT[call]
    for rank, (said, total) in enumerate(two.run(source)):
        mine, their = (first, second) if rank == 0 else (second, first)
        assert said.startswith(f"DistBackendError: [Rank {rank}] call ")
        assert f"of the group is {mine} on rank {rank}, but {their} on rank" in said
        assert total == 2.0


def test_what_is_too_long_for_a_row_differs_all_the_same():
    """Sizes of many ranks take more room than there is; gloo would end the process."""
    rows = [agreement._row(f"all_gather ({'8 ' * 200}{last})") for last in "12"]
    assert rows[0] != rows[1] and {len(row) for row in rows} == {agreement.NUM_BYTES}
    assert agreement._row("barrier").rstrip() == b"barrier"


def test_a_rank_that_ends_is_a_remote_error(fresh):
    """The others hear that a process has gone, in NCCL's words."""
    source = """
import os
x = torch.ones(5).to(gpu)
dist.all_reduce(x, group=group)
if rank == 1:
    os._exit(0)
said = error(dist.all_reduce, x, group=group)
open(path, "w").write(said)
"""
    with tempfile.NamedTemporaryFile("r") as file:
        fresh.push({"path": file.name})
        with pytest.raises(RanksError):
            fresh.run(source)
        said = file.read()
    assert "ncclRemoteError: A call failed possibly due to a network error" in said


def test_a_rank_that_never_makes_its_first_call_is_named_in_words(fresh):
    """Before the first collective ranks meet at the store, whose error is no use."""
    source = """
nccl.set_patience(0.3)
late = dist.new_group(backend="nccl")
rank == 1 or error(dist.all_reduce, torch.ones(1).to(gpu), group=late)
"""
    said, _ = fresh.run(source)
    assert said == (
        "DistBackendError: rank 0 waited at the group's first collective, where ranks "
        "tell each other which GPU they use: without rank 1"
    )
