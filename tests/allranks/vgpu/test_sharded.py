"""Sharded training on GPUs that answer to cuda: the losses of CPU tensors, exactly."""

import pytest

from tests.allranks.backends.gpus import gpu_ranks

SETUP = """
import copy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

torch.cuda.set_device(rank)

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def mesh_of(kind):
    return DeviceMesh.from_group(group if kind == "cuda" else gloo, kind)

def train(net, kind, same=False, num_steps=3):
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    seed = 0 if same else rank
    x = torch.randn(num_steps, 4, 8, generator=torch.Generator().manual_seed(seed))
    losses = []
    for batch in x.to(kind):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def fsdp2(kind, **options):
    net = network().to(kind)
    for layer in net[0], net[2], net:
        fully_shard(layer, mesh=mesh_of(kind), **options)
    return net

def mixed(kind):
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    return fsdp2(kind, mp_policy=precision)

def fsdp1(kind):
    at = rank if kind == "cuda" else torch.device("cpu")
    which = group if kind == "cuda" else gloo
    return FullyShardedDataParallel(network(), which, device_id=at)

def offloaded(kind):
    if kind == "cpu":
        return fsdp1(kind)
    to_host = CPUOffload(offload_params=True)
    return FullyShardedDataParallel(
        network(), group, device_id=rank, cpu_offload=to_host
    )

def tensor_parallel(kind):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(network().to(kind), mesh_of(kind), plan)
"""


@pytest.fixture(scope="module", params=[1, 2, 4], ids="W={}".format)
def ranks(request):
    """Yield 1, 2 or 4 ranks on a GPU each."""
    with gpu_ranks(request.param) as ranks:
        ranks.run(SETUP)
        yield ranks


@pytest.fixture(scope="module")
def two():
    """Yield two ranks on a GPU each."""
    with gpu_ranks(2) as ranks:
        ranks.run(SETUP)
        yield ranks


WAYS = ["fsdp2", "mixed", "fsdp1", "offloaded", "tensor_parallel"]


@pytest.mark.parametrize("way", WAYS)
def test_each_way_trains_as_on_cpu_tensors(ranks, way):
    """The losses of three steps are equal to the last bit."""
    same = way == "tensor_parallel"
    source = f"[train({way}(kind), kind, {same}) for kind in ('cuda', 'cpu')]"
    for ours, theirs in ranks.run(source):
        assert ours == theirs


def test_sharded_tensors_say_where_they_are_and_move(two):
    """A DTensor is where its local tensor is; to, cpu and cuda move that."""
    source = """
whole = torch.arange(4.0)
x = distribute_tensor(whole, mesh_of("cuda"), [Shard(0)])
host = x.cpu()
there = x.device, x.is_cuda, x.to(rank).device, x.to("cuda", torch.bfloat16).dtype
there = [str(one) for one in there]
there, str(host.device), type(host).__name__, host.cuda().full_tensor().tolist()
"""
    for rank, (there, host, kind, whole) in enumerate(two.run(source)):
        gpu = f"cuda:{rank}"
        assert there == [gpu, "True", gpu, "torch.bfloat16"]
        assert (host, kind, whole) == ("cpu", "DTensor", [0.0, 1.0, 2.0, 3.0])


def test_attention_is_sharded_by_heads(two):
    """DTensor knows the attention that runs here, and gives what one rank gives."""
    source = """
attend = nn.functional.scaled_dot_product_attention
torch.manual_seed(0)
whole = torch.randn(2, 4, 8, 16)
alone = whole.clone().requires_grad_()
attend(alone, alone, alone, is_causal=True).square().sum().backward()
q = distribute_tensor(whole, mesh_of("cuda"), [Shard(1)]).requires_grad_()
out = attend(q, q, q, is_causal=True)
out.square().sum().backward()
out.placements == (Shard(1),), (q.grad.full_tensor().cpu() - alone.grad).abs().max()
"""
    for by_heads, off in two.run(source):
        assert by_heads and off < 1e-5


def test_what_fsdp_frees_is_free(two):
    """Between steps a rank holds its shards; the whole only while a layer runs."""
    source = """
import gc, time

def held():
    gc.collect()
    time.sleep(0.2)  # a thread of gloo's lets go of a tensor a moment later
    return torch.cuda.memory_allocated(rank)

before = held()
net = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(4)]).to("cuda")
for layer in [*net, net]:
    fully_shard(layer, mesh=mesh_of("cuda"))
torch.cuda.reset_peak_memory_stats(rank)
with torch.no_grad():
    net(torch.ones(1, 256, device="cuda"))
held() - before, torch.cuda.max_memory_allocated(rank) - before
"""
    one = 256 * 256 * 4
    for held, peak in two.run(source):
        assert round(held / one, 1) == 2.0  # half of four layers
        assert held + one <= peak < held + 4 * one


def test_fsdp1_saves_a_whole_state_dict_on_the_host(two):
    """The flat parameter goes to the host and back, and keeps its gradient."""
    source = """
from torch.distributed.fsdp import FullStateDictConfig, StateDictType

net = fsdp1("cuda")
net(torch.ones(1, 8, device="cuda")).sum().backward()
grads = [p.grad.clone() for p in net.parameters()]
whole = StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, rank0_only=True)
with FullyShardedDataParallel.state_dict_type(net, *whole):
    saved = net.state_dict()
kept = all(p.grad.equal(g) for p, g in zip(net.parameters(), grads, strict=True))
equal = all(saved[k].equal(v) for k, v in network().state_dict().items() if saved)
kept, equal, len(saved)
"""
    assert two.run(source) == [(True, True, 4), (True, True, 0)]


def test_a_state_dict_is_staged_for_an_asynchronous_checkpoint(two):
    """The copy is the host's, and only the tensors are copied, not the device."""
    source = """
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

net = fsdp2("cuda")
staged = StateDictStager(pin_memory=True).stage({"net": net.state_dict()})["net"]
places = {str(t.to_local().device) for t in staged.values()}
places, all(staged[k].to_local().equal(v.to_local().cpu())
            for k, v in net.state_dict().items())
"""
    assert two.run(source) == [({"cpu"}, True)] * 2


def test_weights_are_drawn_after_a_start_on_meta(two):
    """The usual start of a large model: shards are filled where they are."""
    source = """
with torch.device("meta"):
    net = nn.Linear(8, 16)
fully_shard(net, mesh=mesh_of("cuda"))
net.to_empty(device="cuda")
torch.manual_seed(5)
net.reset_parameters()
whole = net.weight.full_tensor()
str(whole.device), whole.cpu(), net.weight.to_local().shape
"""
    found = two.run(source)
    for rank, (where, whole, shard) in enumerate(found):
        assert (where, tuple(shard)) == (f"cuda:{rank}", (8, 8))
        assert whole.equal(found[0][1]) and 0 < whole.abs().max() < 8**-0.5
        assert whole.unique().numel() > 100  # the ranks' shards differ
