"""The guard inside of a rehearsal leaves no trace, and never stops the script."""

import pytest

from allranks.rehearse.records import GuardNotes
from tests.allranks.backends.gpus import gpu_ranks

TRAIN = """
import gc, weakref
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from allranks.rehearse.guarding import Guards
from allranks.rehearse.replicas import fsdp_roots, sharded
from allranks.vgpu.machine import current

def counted():
    own = current().devices[rank]
    return own.taken, own.peak, own.busy_s, current().host_s, str(current().copied)

def same(net):
    return net

def train(change=same, skipped=(), patience_s=60, layers=(), wrap=same):
    wrappers, optimizers = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()
    guards = Guards(lambda: list(wrappers), optimizers, patience_s)
    net = nn.Sequential(nn.Linear(4, 4), *layers).to(gpu)
    model = nn.parallel.DistributedDataParallel(
        wrap(net), device_ids=[rank], process_group=group
    )
    optimizer = torch.optim.AdamW(model.parameters())
    wrappers[model] = None
    optimizers[optimizer] = None
    gone, traces = weakref.ref(model), []
    torch.manual_seed(0)
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.randn(2, 4, device=gpu) + rank).square().sum().backward()
        before = counted()
        guards.after_backward()
        traces.append(counted() == before)
        change(model)
        before = counted()
        if (rank, step) not in skipped:
            guards.before_step(optimizer)
            traces.append(counted() == before)
            optimizer.step()
    notes = guards.notes
    del model, optimizer, net
    gc.collect()
    return notes, all(traces), gone()

def shard(early):
    gc.collect()  # a model that is left over has no optimizer either
    torch.cuda.set_device(rank)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(gpu)
    before = torch.optim.AdamW(net.parameters()) if early else None
    fully_shard(net, mesh=DeviceMesh.from_group(group, "cuda"))
    optimizer = before or torch.optim.AdamW(net.parameters())
    guards = Guards(lambda: list(filter(sharded, fsdp_roots())), [optimizer], 60)
    for _ in range(3):
        net.zero_grad()
        net(torch.randn(2, 4, device=gpu) + rank).square().sum().backward()
        guards.after_backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        guards.before_step(optimizer)
        optimizer.step()
    return guards.notes

def edit(model):
    if rank == 1:
        model.module[0].weight.data[0, 0] += 1

def clip(model):
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)

def scale(model):  # backward has left the mean; from here on it is another number
    model.module[0].weight.grad.mul_(3)
"""


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks that can train under a guard."""
    with gpu_ranks(2) as ranks:
        ranks.run(TRAIN)
        yield ranks


@pytest.mark.parametrize("change", ["clip", "scale"])
def test_what_the_program_does_to_gradients_is_no_finding(ranks, change):
    """Gradients are looked at as backward leaves them; nothing is counted or kept."""
    for notes, quiet, gone in ranks.run(f"train({change})"):
        assert (notes, quiet, gone) == (GuardNotes(["DDP"]), True, None)


def test_a_finding_is_noted_and_the_script_goes_on(ranks):
    """All four steps are made; the guard ends with what it has found first."""
    for notes, quiet, gone in ranks.run("train(edit)"):
        (finding,) = notes.findings
        assert finding.kind == "guard"
        assert "module.0.weight is not the same on all" in finding.text
        assert (notes.ended, quiet, gone) == ([], True, None)


def test_a_compiled_model_is_compared_too(ranks):
    """Its wrapper has a len() that raises, so nobody may ask whether it is true."""
    code = """
from types import SimpleNamespace

passes = []
def edit_inside(model):
    passes.append(1)
    if len(passes) == 2:  # after a first check, which looks into all modules
        edit(SimpleNamespace(module=model.module._orig_mod.net))

class Named(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net(x)

train(edit_inside, wrap=lambda net: torch.compile(Named(net), backend="eager"))
"""
    for notes, _, _ in ranks.run(code):
        (finding,) = notes.findings
        assert finding.kind == "guard"
        assert "_orig_mod.net.0.weight is not the same" in finding.text
        assert notes.ended == []


def test_equal_random_numbers_do_not_end_the_guard(ranks):
    """They may be meant, so what comes after them is found as well."""
    code = """
seen = []
def later(model):
    seen.append(1)
    if len(seen) == 4:
        edit(model)
train(later, layers=[nn.Dropout(0.5)])
"""
    for notes, quiet, _ in ranks.run(code):
        first, second = notes.findings
        assert [first.kind, second.kind] == ["same-random-numbers", "guard"]
        assert "--allow same-random-numbers" in first.text
        assert notes.ended == [] and quiet


def test_a_rank_that_does_not_come_ends_the_guard_alone(ranks):
    """Rank 1 leaves out the second step; both make all others, and nothing is found."""
    for notes, quiet, gone in ranks.run("train(skipped={(1, 2)}, patience_s=1)"):
        assert (notes.findings, quiet, gone) == ([], True, None)
        (why,) = notes.ended
        assert "did not come within 1 s" in why


def test_a_sharded_model_is_found_without_a_wrapper(ranks):
    """An optimizer that was built before fully_shard holds none of its parameters."""
    for notes in ranks.run("shard(early=False)"):
        assert notes == GuardNotes(["FSDP2"])
    for notes in ranks.run("shard(early=True)"):
        (finding,) = notes.findings
        assert finding.kind == "guard"
        assert "the optimizer does not hold 0.weight" in finding.text


HOOKED = """
from allranks.rehearse.replicas import Replicas
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local

def told(hook):
    net = nn.Linear(4, 4).to(gpu)
    model = nn.parallel.DistributedDataParallel(net, process_group=group)
    if hook:
        state = local.PostLocalSGDState(group, None, 1)
        model.register_comm_hook(state, local.post_localSGD_hook)
    replicas = Replicas([], guard=False, patience_s=1)
    replicas.add_ddp_model(model)
    replicas.plan_digest()
    return replicas.replicated, replicas.data_parallel

told(False), told(True)
"""


def test_replicas_that_a_hook_lets_drift_need_not_be_equal(ranks):
    """Each rank has its own samples all the same."""
    assert ranks.run(HOOKED) == [((True, True), (False, True))] * 2


HASHED = """
class Named(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        setattr(self, ATTRIBUTE, hash("a word") + rank)
    def forward(self, x):
        return self.net(x)

def remarks(name):
    global ATTRIBUTE
    ATTRIBUTE = name
    notes, _, _ = train(wrap=Named)
    return [text for text in notes.remarks if name in text]

len(remarks("rate")), len(remarks("_object_hash"))
"""


def test_a_hash_that_differs_is_no_remark(ranks):
    """That of an object is another one in each process; a rate would be told."""
    assert ranks.run(HASHED) == [(1, 0)] * 2


JOINED = """
def looked():
    model = nn.parallel.DistributedDataParallel(
        nn.Linear(4, 4).to(gpu), process_group=group
    )
    replicas = Replicas([], guard=False, patience_s=1)
    replicas.add_ddp_model(model)
    replicas.num_steps = 1
    replicas.plan_digest()
    before = replicas.replicated
    replicas.digests[1] = 0.5
    with model.join():
        replicas.plan_digest()
    replicas.plan_digest()  # whose steps are no common moments from now on
    return before, replicas.replicated, replicas.digests, replicas.data_parallel

looked()
"""


def test_unequal_steps_under_join_are_not_compared(ranks):
    """Step 2 of a rank that has more batches is another moment than the others'."""
    ranks.run(HOOKED.partition("def told")[0])
    assert ranks.run(JOINED) == [(True, False, {}, True)] * 2
