"""The lesson's backend gives gloo's results, trains DDP, and leaves nothing behind."""

import os

import pytest

from allranks import Ranks
from tests.ranks import run_script

START = """
import gc
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from scripts import ch7_backend as script

if "lesson" not in dist.Backend.backend_list:
    dist.Backend.register_backend("lesson", script.SharedMemory, devices=["cpu"])
ours, gloo = dist.new_group(backend="lesson"), dist.new_group(backend="gloo")
"""
SUMS = """
def both(x, op):
    one, other = x.clone(), x.clone()
    dist.all_reduce(one, op, ours)
    dist.all_reduce(other, op, gloo)
    return torch.equal(one, other)

SUM, AVG, MAX = dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX
tall = torch.arange(24.0).view(4, 6).mul(rank + 1)
[
    *(both((torch.arange(n) % 7 + rank).to(t), op)
      for n in (0, 1, 5, script.SLOT // 4 + 3)
      for t in (torch.float32, torch.int64, torch.bfloat16) for op in (SUM, MAX)),
    both(tall, AVG),
    both(tall.T[::2], SUM),
]
"""
TRAIN = """
def train(group, wrap):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3)).double()
    if wrap == "ddp":
        net = nn.parallel.DistributedDataParallel(net, process_group=group)
    else:
        net = fully_shard(net, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9)
    for batch in torch.randn(5, 8, 20, dtype=torch.double):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    mine = [getattr(p, "to_local", p.clone)() for p in net.parameters()]
    return torch.cat([p.detach().flatten() for p in mine])

found = [(train(ours, w) - train(gloo, w)).abs().max().item() for w in ("ddp", "fsdp2")]
gc.collect()
found
"""


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="W={}".format)
def ranks(request):
    """Yield live ranks, with a group of ours and one of gloo's."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


def test_all_reduce_has_gloos_bits(ranks):
    """Of sums that are exact in any order, and of what it leaves to gloo."""
    for found in ranks.run(SUMS, quiet=True):
        assert all(found) and len(found) == 26


def test_ddp_and_fsdp2_train_on_it_as_they_are(ranks):
    """With gloo's weights: bit for bit on two ranks, else up to rounding."""
    near = 0 if ranks.world_size < 3 else 1e-12
    for gaps in ranks.run(TRAIN, quiet=True):
        assert max(gaps) <= near


def test_a_rank_that_does_not_come_is_named():
    """The others wait for it as long as the group's timeout says."""
    source = """
from datetime import timedelta
group = dist.new_group(backend="lesson", timeout=timedelta(seconds=0.3))
try:
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group)
    said = ""
except RuntimeError as error:
    said = str(error)
said
"""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        assert ranks.run(source, quiet=True) == ["rank 1 has not come in time", ""]


def test_the_script_compares_it_with_gloo_and_leaves_no_memory():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    lines = run_script("ch7_backend", 2, "--repeats", "1")[0]
    assert [line.split()[2] for line in lines] == ["1", "4", "16", "64", "DDP"]
    assert lines[-1].endswith("its gradients differ by 0.0e+00 at most")
    if os.path.isdir("/dev/shm"):
        new = set(os.listdir("/dev/shm")) - before
        assert not [name for name in new if "ch7" in name]
