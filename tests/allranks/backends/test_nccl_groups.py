"""Groups over "nccl": how scripts make them, split them, and get rid of them."""

import pytest
import torch.distributed as dist

from tests.allranks.backends.gpus import gpu_ranks


@pytest.fixture(scope="module")
def two():
    """Yield two ranks on a GPU each."""
    with gpu_ranks(2) as ranks:
        yield ranks


def test_a_group_for_both_devices_takes_each_tensor_where_it_is(two):
    """In "cpu:gloo,cuda:nccl" a CPU tensor goes to gloo, which knows no rules."""
    source = """
both = dist.new_group(backend="cpu:gloo,cuda:nccl")
calls = []
stop = nccl.watch(calls.append)
dist.all_reduce(torch.ones(2).to(gpu), group=both)
x = torch.tensor([rank + 2])
dist.all_reduce(x, dist.ReduceOp.BAND, group=both)
stop()
x.item(), [call.op for call in calls]
"""
    assert two.run(source) == [(2, ["all_reduce"])] * 2


def test_options_of_a_real_nccl_group_are_taken(two):
    """Streams and CTA policies change nothing here, and must not fail."""
    source = """
from torch.distributed import distributed_c10d

options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.cta_policy = dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
group_2 = dist.new_group(backend="nccl", pg_options=options)
x = torch.ones(1).to(gpu)
dist.all_reduce(x, group=group_2)
timeout = group_2._get_backend(torch.device("cuda")).options._timeout
x.item(), timeout.total_seconds(), dist.get_backend(group_2), torch.cuda.nccl.version()
"""
    assert two.run(source) == [(2.0, 600.0, "nccl", (2, 27, 5))] * 2


def test_a_group_is_split_without_the_ranks_of_other_parts(two):
    """DeviceMesh does so when a device_id is bound; names are equal on all members."""
    source = """
whole = dist.split_group(group, [[0, 1]])
alone = dist.split_group(group, [[1]])
x = torch.ones(1).to(gpu)
dist.all_reduce(x, group=whole)
whole.group_name, alone is None or dist.get_process_group_ranks(alone), x.item()
"""
    (name, first, total), (name_1, second, total_1) = two.run(source)
    assert name == name_1 and total == total_1 == 2.0
    assert (first, second) == (True, [1])


def test_a_destroyed_group_is_forgotten(two):
    """What was made for a group goes with it."""
    source = """
import gc
from allranks.backends.nccl.group import _of_group

before = len(_of_group)
gone = dist.new_group(backend="nccl")
dist.all_reduce(torch.ones(1).to(gpu), group=gone)
during = len(_of_group)
dist.destroy_process_group(gone)
del gone
gc.collect()
during - before, len(_of_group) - before
"""
    assert two.run(source) == [(1, 0)] * 2


def test_the_factor_is_that_of_the_call(two):
    """Two factors are told apart, given as FSDP gives them, or as a tensor."""
    source = """
half = dist.ReduceOp.PREMUL_SUM(0.5)
third = torch._C._distributed_c10d._make_nccl_premul_sum(torch.tensor(3.0).to(gpu))
out = []
for op in half, third, half:
    x = torch.ones(1).to(gpu)
    dist.all_reduce(x, op, group=group)
    out.append(x.item())
out
"""
    assert two.run(source) == [[1.0, 6.0, 1.0]] * 2


def test_a_barrier_takes_the_gpu_that_nccl_would_take(two):
    """Not the current one, which is GPU 0 on both ranks here."""
    source = """
def used(*barriers, before=None):
    fresh = dist.new_group(backend="nccl")
    if before is not None:
        dist.all_reduce(torch.ones(1, device=before), group=fresh)
    for asked in barriers:
        dist.barrier(fresh, device_ids=asked)
    return sorted(fresh._get_backend(torch.device("cuda"))._used)

by_number, asked = used(None), used([1 - rank])
before = used(None, before=f"cuda:{1 - rank}")
by_number, asked, before
"""
    assert two.run(source) == [([0], [1], [1]), ([1], [0], [0])]


def test_uninstalled_everything_is_as_it_was(two):
    """No patch stays; a CPU build has no nccl again, and a CUDA build its own."""
    source = """
from allranks.backends.nccl import patches

nccl.uninstall()
try:
    here = [vars(owner).get(name) for owner, name, _ in patches.PATCHES]
    said = error(dist.new_group, backend="nccl")
finally:
    nccl.install()
ours = [new for _, _, new in patches.PATCHES]
left = [now is new for now, new in zip(here, ours, strict=True) if new is not True]
said, any(left), len(left)
"""
    sentence = "RuntimeError: Distributed package doesn't have NCCL built in"
    if dist.is_nccl_available():
        sentence = "NotImplementedError: torch.distributed.ProcessGroupNCCL2 needs a "
    for said, left, count in two.run(source):
        assert said.startswith(sentence) and not left and count > 20
