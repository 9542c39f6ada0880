"""DDP over the backend "nccl": the weights of gloo on CPU tensors, bit for bit."""

import pytest

from tests.allranks.backends.gpus import gpu_ranks

TRAIN = """
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

def train(to, group, hook=None, state=None, **options):
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(30, 200), nn.BatchNorm1d(200), nn.Linear(200, 2))
    ddp = nn.parallel.DistributedDataParallel(
        net.to(to), process_group=group, bucket_cap_mb=0.01, **options
    )
    if hook:
        ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(4, 4, 30, generator=torch.Generator().manual_seed(rank))
    for step, batch in enumerate(x.to(to)):
        optimizer.zero_grad()
        ddp(batch).square().mean().backward()
        optimizer.step()
    assert all(p.grad.device == p.device for p in net.parameters())
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu()

def power(group):
    return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2)
"""


@pytest.fixture(scope="module", params=[1, 2, 4], ids="W={}".format)
def ranks(request):
    """Yield 1, 2 or 4 ranks on a GPU each."""
    with gpu_ranks(request.param) as ranks:
        ranks.run(TRAIN)
        yield ranks


@pytest.fixture(scope="module")
def two():
    """Yield two ranks on a GPU each."""
    with gpu_ranks(2) as ranks:
        ranks.run(TRAIN)
        yield ranks


def test_ddp_trains_as_on_cpu_tensors(ranks):
    """The same order of sums gives the same weights, and ranks stay equal."""
    source = "train(gpu, group).equal(train('cpu', gloo)), train(gpu, group)"
    found = ranks.run(source)
    assert all(equal for equal, _ in found)
    assert all(weights.equal(found[0][1]) for _, weights in found)


COMPLEX = """
from torch import nn

class Rotates(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.randn(6, dtype=torch.complex64))
        self.register_buffer("start", torch.randn(6, dtype=torch.complex64))

    def forward(self, x):
        return (x * self.turn * self.start).abs().mean()

def turned(to, group):
    torch.manual_seed(rank)
    net = Rotates().to(to)
    ddp = nn.parallel.DistributedDataParallel(net, process_group=group)
    x = torch.arange(6.0) + rank
    ddp(x.to(to)).backward()
    return torch.cat([net.start, net.turn.detach(), net.turn.grad]).cpu()
"""


def test_ddp_takes_complex_numbers(two):
    """NCCL has none, so c10d sends and adds up pairs for it."""
    two.run(COMPLEX)
    found = two.run("turned(gpu, group), turned('cpu', gloo)")
    assert all(ours.equal(found[0][1]) for ours, _ in found)


OPTIONS = ["gradient_as_bucket_view", "find_unused_parameters", "static_graph"]


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_of_ddp(two, option):
    """Buckets as gradients, maps of used parameters, and static graphs work."""
    source = (
        f"train(gpu, group, {option}=True).equal(train('cpu', gloo, {option}=True))"
    )
    assert two.run(source) == [True] * 2


HOOKS = {
    "default_hooks.fp16_compress_hook": "(lambda group: group)",
    "default_hooks.bf16_compress_hook": "(lambda group: group)",
    "default_hooks.allreduce_hook": "(lambda group: group)",
    "powerSGD_hook.powerSGD_hook": "power",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_each_communication_hook(two, hook):
    """A hook gets buckets that are on the GPU, and may call what it likes."""
    state = HOOKS[hook]
    source = f"""
ours = train(gpu, group, {hook}, {state}(group))
there, torch.cuda.is_available = torch.cuda.is_available, lambda: False
try:  # where there are GPUs, torch's own PowerSGD refuses buckets that are elsewhere
    theirs = train("cpu", gloo, {hook}, {state}(gloo))
finally:
    torch.cuda.is_available = there
ours.equal(theirs)
"""
    assert two.run(source) == [True] * 2


def test_buckets_fill_the_gpu_and_are_told(two):
    """Beside the gradients there are buckets of their size; each is an all_reduce."""
    source = """
import gc, time

def bytes_of(**options):
    gc.collect()
    time.sleep(0.2)  # a thread of gloo's lets go of a tensor a moment later
    before = torch.cuda.memory_allocated(gpu)
    net = nn.Linear(256, 256, bias=False).to(gpu)
    ddp = nn.parallel.DistributedDataParallel(net, process_group=group, **options)
    ddp(torch.ones(1, 256).to(gpu)).sum().backward()
    gc.collect()
    time.sleep(0.2)
    return torch.cuda.memory_allocated(gpu) - before

calls = []
stop = nccl.watch(calls.append)
apart = bytes_of()
stop()
told = [(call.op, call.num_bytes) for call in calls if call.num_bytes == 256 * 256 * 4]
apart, bytes_of(gradient_as_bucket_view=True), told
"""
    one = 256 * 256 * 4
    for apart, shared, told in two.run(source):
        assert round(apart / one) == 3 and round(shared / one) == 2
        assert told == [("broadcast", one), ("all_reduce", one)]
