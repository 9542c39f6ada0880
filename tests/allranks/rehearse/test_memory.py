"""Who holds a GPU's memory at its peak, to the byte, and which batch would fit."""

import pytest

from allranks import Ranks
from allranks.rehearse import memory


@pytest.fixture(scope="module")
def ranks():
    """Yield one rank, whose virtual GPU each test plugs in anew."""
    with Ranks(1) as ranks:
        yield ranks


TRAIN = """
from types import SimpleNamespace
from allranks import vgpu
from allranks.rehearse import memory

machine = vgpu.plug_in(1, kind="cuda")
holders = memory.Holders(machine)
machine.observer = SimpleNamespace(
    on_allocate=holders.on_allocate, on_free=holders.on_free, on_copy=lambda *_: None
)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(4, 64, device="cuda")).square().sum().backward()
optimizer.step()
large = torch.zeros(2**20, device="cuda")  # the peak, by far
holders.look(machine.devices[0])
peak, held, lines = holders.peaks[0]
peak == machine.devices[0].peak == sum(held.values()), dict(held)
"""


def test_the_holders_add_up_to_the_peak(ranks):
    """A weight of 64 × 64 and three vectors of 64, each in blocks of 512 bytes."""
    ((adds_up, held),) = ranks.run(TRAIN)
    blocks = 64 * 64 * 4 + 3 * 512
    assert adds_up
    assert held["parameters"] == held["gradients"] == blocks
    assert held["optimizer"] == 2 * blocks  # its steps are counted on the host
    assert held["buffers"] == 3 * 512
    assert held["other"] >= 2**22


ENDS = """
from types import SimpleNamespace
from allranks import vgpu
from allranks.rehearse import memory

machine = vgpu.plug_in(1, kind="cuda")
holders = memory.Holders(machine)
machine.observer = SimpleNamespace(
    on_allocate=holders.on_allocate, on_free=holders.on_free, on_copy=lambda *_: None
)
net = torch.nn.Linear(64, 64, bias=False).cuda()
weight, optimizer = net.weight, torch.optim.AdamW(net.parameters(), fused=True)
net(torch.ones(4, 64, device="cuda")).sum().backward()
optimizer.step()
exec(HOW)
weight.grad, dict(holders.peaks[0][1])
"""


@pytest.mark.parametrize(
    "how", ["weight.grad = None", "del weight.grad", "net.zero_grad()"]
)
def test_a_peak_may_end_with_the_free_of_a_gradient(ranks, how):
    """It is counted among the gradients, though C++ is just about to free it."""
    code = ENDS.replace("HOW", repr(how))
    ((left, held),) = ranks.run(code)
    assert left is None
    assert held["parameters"] == held["gradients"] == 64 * 64 * 4
    assert held["optimizer"] == 2 * 64 * 64 * 4 + 512  # a fused one's step, too


WATCHED = """
import threading
from types import SimpleNamespace
from allranks import vgpu
from allranks.rehearse import memory

machine = vgpu.plug_in(1, kind="cuda")
holders = memory.Holders(machine)
machine.observer = SimpleNamespace(
    on_allocate=holders.on_allocate, on_free=holders.on_free, on_copy=lambda *_: None
)
held, seen, readers = torch.ones(1024, device="cuda"), [], []
holders._owned_storages = lambda: readers.append(threading.get_ident()) or ()

def watch():
    holders.watching_thread = threading.get_ident()
    holders.look(machine.devices[0])
    seen.append(holders.peak(machine.devices[0])[0])

thread = threading.Thread(target=watch)
thread.start()
thread.join()
more = torch.ones(1, device="cuda")  # so that the watcher knows more next time
seen, readers == [threading.get_ident()]
"""


def test_a_thread_that_only_watches_leaves_the_reading_to_others(ranks):
    """C++ replaces gradients without Python's lock, so reading one there may crash."""
    ((seen, by_its_owner),) = ranks.run(WATCHED)
    assert seen == [4096] and by_its_owner


FIT = """
from types import SimpleNamespace
from allranks import vgpu
from allranks.rehearse import memory, samples
from torch import nn

def train(size, limit="1 GiB", steps=2):
    machine = vgpu.plug_in(1, memory=limit, kind="cuda")
    done = []
    given = samples.Samples(lambda: len(done))
    holders = memory.Holders(machine, lambda: given.batch)
    machine.observer = SimpleNamespace(
        on_allocate=holders.on_allocate, on_free=holders.on_free,
        on_out_of_memory=holders.on_out_of_memory, on_copy=lambda *_: None,
    )
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 49, 100), nn.GELU(), nn.Linear(100, 1),
    ).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    net.register_forward_pre_hook(given.give)
    gpu, fits = machine.devices[0], True
    try:
        for _ in range(steps):
            x = torch.randn(size, 3, 16, 16).cuda()
            with torch.autocast("cuda"):
                loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done.append(1)
    except torch.OutOfMemoryError:
        fits = False
    holders.growth(gpu).look(gpu.allocated)
    return gpu.peak, holders.growth(gpu).of_batch(given.trained()), fits

peak, growth, _ = train(8)
limit = 4 * peak
best = memory.largest_batch(growth.moments, 8, limit)
fits = train(best, limit)[2]
_, lacking, over = train(best + best // 10, limit)
tried = peak, growth, best, train(best)[0], train(8 * best)[0]
tried, fits, over, memory.estimate_batch(lacking, limit, 0), train(8, limit, 1)[1]
"""


def test_a_larger_batch_has_the_peak_that_was_extrapolated(ranks):
    """From 8 samples: the largest that fits does, and one that is 10 % larger not.

    When that one has run out of memory, no batch that fits is said to be too large.
    """
    ((tried, fits, over, estimate, once),) = ranks.run(FIT)
    peak, growth, best, there, far = tried
    assert growth.batch == 8  # no DataLoader says so, but what the model was given
    moments = growth.moments
    assert best > 16 and fits and not over
    assert estimate.lacked and best <= estimate.largest < best + best // 10
    assert estimate.rehearsed == best + best // 10
    # A first step has no optimizer's state before it, so its moments say too little.
    assert once.moments and memory.estimate_batch(once, 4 * peak, num_steps=1) is None
    assert memory.peak_bytes(moments, 8, 8) == peak
    for batch, real in (best, there), (8 * best, far):
        # Each tensor's size is rounded up to 512 bytes, which does not grow.
        assert abs(memory.peak_bytes(moments, 8, batch) / real - 1) < 0.01


def test_what_has_no_batch_in_its_shape_does_not_grow():
    """Weights are known by their shapes, and flat parameters are rows."""
    fixed = {(64, 64)}
    assert memory.grows((64, 10), 64, fixed) and memory.grows((3, 2, 64, 5), 64, fixed)
    for shape in (), (64, 64), (640,), (10, 10):
        assert not memory.grows(shape, 64, fixed)
    assert memory.largest_batch([(100, 0)], 8, 200) is None


COPIED = """
import copy
from types import SimpleNamespace
from allranks import vgpu
from allranks.rehearse import memory

machine = vgpu.plug_in(1, kind="cuda")
holders = memory.Holders(machine)
machine.observer = SimpleNamespace(
    on_allocate=holders.on_allocate, on_free=holders.on_free, on_copy=lambda *_: None
)
net = torch.nn.Linear(64, 64, bias=False).cuda()
average = copy.deepcopy(net).requires_grad_(False)
holders.look(machine.devices[0])
dict(holders.peaks[0][1])
"""


def test_the_weights_of_a_copied_model_are_parameters(ranks):
    """No optimizer has a moving average's, and no module registers them."""
    (held,) = ranks.run(COPIED)
    assert held["parameters"] == 2 * 64 * 64 * 4 and "activations" not in held
