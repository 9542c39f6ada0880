"""Each DDP by hand trains as torch's does, and the last one cures what they lack."""

import ast
import inspect
import math

import pytest
from torch import nn

from allranks import Ranks
from allranks.base.paths import ROOT
from allranks.topics.compression.sums import waits
from allranks.topics.links.network import parse
from allranks.topics.links.sums import seconds
from scripts import ch8_ddp_by_hand
from tests.bench import by_hand
from tests.ranks import run_on

START = """
import copy
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as Theirs
from scripts import ch8_buckets, ch8_flat, ch8_per_parameter
from scripts.ch8_ddp_by_hand import DDP
from scripts.ch8_per_parameter import on_all_reduce

class Net(nn.Module):
    # Uses its layers in another order than it has them; has a branch, a shared
    # weight, a frozen one and buffers.
    def __init__(self):
        super().__init__()
        torch.manual_seed(rank)
        self.last, self.first = nn.Linear(12, 3), nn.Linear(6, 12)
        self.norm, self.branch = nn.BatchNorm1d(12), nn.Linear(12, 12)
        self.again = nn.Linear(12, 12, bias=False)
        self.again.weight = self.branch.weight
        self.frozen = nn.Linear(12, 12).requires_grad_(False)

    def forward(self, x, branch=True):
        x = self.frozen(self.norm(self.first(x)).tanh())
        if branch:
            x = x + self.branch(x).sin() + self.again(x)
        return self.last(x)

dice = torch.Generator().manual_seed(50 + rank)
batches = torch.randn(8, 5, 6, generator=dice)

def train(model, optimizer=None, branch=lambda step: True, batches=batches):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for step, x in enumerate(batches):
        optimizer.zero_grad()
        model(x, branch(step)).square().mean().backward()
        if hasattr(model, "average"):
            model.average()
        optimizer.step()
    return optimizer

def gap(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)

def everybodys(tensors):
    # How far other ranks' tensors are from these, at most.
    mine = torch.cat([t.detach().double().flatten() for t in tensors])
    all_ = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(all_, mine)
    return max((mine - other).abs().max().item() for other in all_)

def counted(act):
    # What dist.all_reduce and dist.broadcast are called with meanwhile.
    calls, kept = [], (dist.all_reduce, dist.broadcast)
    def watch(call):
        return lambda x, *a, **k: calls.append((call.__name__, x.numel())) or call(
            x, *a, **k)
    dist.all_reduce, dist.broadcast = map(watch, kept)
    try:
        act()
    finally:
        dist.all_reduce, dist.broadcast = kept
    return calls
"""


@pytest.fixture(scope="module", params=[2, 3, 4], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have all wrappers, a model and batches of their own."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.mark.parametrize(
    "ours",
    ["ch8_per_parameter.DDP", "ch8_flat.DDP", "ch8_buckets.DDP", "DDP"],
)
def test_trains_as_torchs_does(ranks, ours):
    """Bit for bit on two ranks, up to rounding on more; all replicas stay equal."""
    found = ranks.run(
        f"""
ours, theirs = {ours}(Net()), Theirs(Net())
train(ours), train(theirs)
gap(ours, theirs), everybodys(ours.parameters())
""",
        quiet=True,
    )
    for from_torch, between_ranks in found:
        assert between_ranks == 0
        assert from_torch == 0 if ranks.world_size == 2 else from_torch < 1e-5


def test_messages_leave_in_the_order_of_rank_0s_gradients(ranks):
    """The first step has one bucket; then they are cut as torch cuts its own."""
    found = ranks.run(
        """
torch.manual_seed(rank)
layers = [nn.Linear(6, 6, bias=False) for _ in range(5)]
caps = 100 / 2**20, 400 / 2**20  # a weight has 144 bytes
model = DDP(nn.Sequential(*layers), caps)
once = lambda: model(torch.ones(1, 6)).sum().backward()
first, second = counted(once), counted(once)
names = {p: n for n, p in model.module.named_parameters()}
first, second, [[names[p] for p in b.parts] for b in model.buckets]
""",
        quiet=True,
    )
    for first, second, buckets in found:
        size = ranks.world_size
        assert first == [("all_reduce", 5 * 36 + 5 + size)]
        sizes = [36 + 1 + size, 3 * 36 + 3 + size, 36 + 1 + size]
        assert second == [("all_reduce", size) for size in sizes]
        of = [["4"], ["3", "2", "1"], ["0"]]
        assert buckets == [[f"{name}.weight" for name in names] for names in of]


def test_a_bucket_leaves_before_the_last_gradient_is_there(ranks):
    """Both with a guessed order and with the true one."""
    found = ranks.run(
        """
def log_of(wrap):
    net, log, call = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))), [], []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda _: log.append("g"))
    model = wrap(net)
    model(torch.ones(1, 6)).sum().backward()
    log.clear()
    with on_all_reduce(lambda _: log.append("M")):
        model(torch.ones(1, 6)).sum().backward()
    return "".join(log)

small = 1 / 2**20
[log_of(lambda net: ch8_buckets.DDP(net, small)), log_of(lambda net: DDP(net, [small]))]
""",
        quiet=True,
    )
    assert found == [["gMgMgMgMgMgM"] * 2] * ranks.world_size


def test_ranks_that_differ_send_their_buckets_in_one_order(ranks):
    """Odd ranks' gradients come in another order; the sums are right all the same."""
    found = ranks.run(
        """
class Either(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(rank)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 9)
    def forward(self, x):
        if rank % 2:
            right = self.b(x)
            return self.a(x).sum() + right.square().sum()
        left = self.a(x)
        return self.b(x).square().sum() + left.sum()

ours, theirs = DDP(Either().double(), [1 / 2**20]), Theirs(Either().double())
for x in batches:
    for model in ours, theirs:
        model.zero_grad()
        model(x.double()).backward()
grads = zip(ours.parameters(), theirs.parameters())
max((a.grad - b.grad).abs().max().item() for a, b in grads)
""",
        quiet=True,
    )
    assert max(found) < 1e-12


@pytest.mark.parametrize("branch", ["(step + rank) % 2 == 0", "step % 3 == 0"])
def test_a_branch_that_some_batches_do_not_use(ranks, branch):
    """As torch's with find_unused_parameters=True, and without being told."""
    found = ranks.run(
        f"""
use = lambda step: {branch}
ours, theirs = DDP(Net().double()), Theirs(Net().double(), find_unused_parameters=True)
train(ours, branch=use, batches=batches.double())
train(theirs, branch=use, batches=batches.double())
gap(ours, theirs), everybodys(ours.parameters())
""",
        quiet=True,
    )
    for from_torch, between_ranks in found:
        assert from_torch < 1e-12 and between_ranks == 0


def test_what_no_rank_uses_keeps_no_gradient(ranks):
    """So its optimizer leaves it alone; with zeros, momentum would move it."""
    found = ranks.run(
        """
model = DDP(Net().double())
for x in batches[:2].double():
    model.zero_grad()
    model(x, branch=False).sum().backward()
model.module.branch.bias.grad is None, model.module.first.bias.grad is None
""",
        quiet=True,
    )
    assert found == [(True, False)] * ranks.world_size


def test_the_tail_counts_gradients_and_names_the_ranks_that_have_a_batch():
    """As the page's table has it: two ranks, of which one lacks the second gradient."""
    source = """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(2))
    def forward(self, uses):
        return self.one.sum() * (rank + 1) + (2 * self.two.sum() if uses else 0)

model, sent = DDP(Two()), []
for _ in range(2):  # the second step has the gradients in rank 0's order
    model.zero_grad()
    with on_all_reduce(lambda x: sent.append(x.clone())):
        model(rank == 0).backward()
bucket = model.buckets[0]
first = list(bucket.parts)[0] is model.module.one
order = (0, 1) if first else (1, 0)
counts = sent[1][8:10].tolist(), bucket.flat[8:10].tolist()
grads = [p.grad[0].item() for p in (model.module.one, model.module.two)]
counts = [[each[place] for place in order] for each in counts]
counts, sent[1][10:].tolist(), bucket.ranks.tolist(), grads
"""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        zero, one = ranks.run(source, quiet=True)
    assert zero == ([[1, 1], [2, 1]], [1, 0], [1, 1], [1.5, 1.0])
    assert one == ([[1, 0], [2, 1]], [0, 1], [1, 1], [1.5, 1.0])


def test_a_gradient_of_a_gradient_is_refused():
    """create_graph=True raises, as with torch's DDP, and gives no wrong gradient."""
    source = """
model = DDP(nn.Linear(1, 1).double())
loss = model(torch.ones(1, 1).double()).square().sum()
try:
    loss.backward(create_graph=True)
    said = ""
except RuntimeError as error:
    said = str(error)
said
"""
    with Ranks(1) as ranks:
        ranks.run(START, quiet=True)
        (said,) = ranks.run(source, quiet=True)
    assert "out=... arguments don't support automatic differentiation" in said


def test_no_sync_sends_nothing_and_the_next_pass_sends_the_sum(ranks):
    """As torch's does; also of a branch that only a pass inside has used."""
    found = ranks.run(
        """
def accumulate(model):
    for number, x in enumerate(batches[:3].double()):
        with model.no_sync():
            model(x, branch=number == 1).sum().backward()
    model(batches[3].double(), branch=False).sum().backward()
    return [p.grad for p in model.parameters() if p.requires_grad]

ours, theirs = DDP(Net().double()), Theirs(Net().double(), find_unused_parameters=True)
for model in ours, theirs:
    model(batches[0].double()).sum().backward()
    model.zero_grad()
def inside():
    with ours.no_sync():
        ours(batches[0].double()).sum().backward()
silent = counted(inside)
ours.zero_grad()
with ours.no_sync():
    pass
theirs.module.load_state_dict(ours.module.state_dict())
pairs = zip(accumulate(ours), accumulate(theirs), strict=True)
silent, max((a - b).abs().max().item() for a, b in pairs)
""",
        quiet=True,
    )
    for silent, from_torch in found:
        assert silent == [] and from_torch < 1e-12


def test_ranks_with_fewer_batches_shadow_the_others(ranks):
    """All end with one process's weights, and with equal momentum.

    The process takes the mean over those ranks that still have a batch. The first
    rank has no batch at all.
    """
    found = ranks.run(
        """
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    def forward(self, x, branch):
        return self.net(x)

mine = batches[: 2 * rank].double()
model = DDP(Plain())
alone = copy.deepcopy(model.module)
optimizer = train(model, batches=mine)
steps = len(mine)
while model.shadow():
    optimizer.step()
    steps += 1
everyones = [None] * world_size
dist.all_gather_object(everyones, mine)
other = torch.optim.SGD(alone.parameters(), 0.1, 0.9)
for step in range(2 * (world_size - 1)):
    other.zero_grad()
    there = [b[step] for b in everyones if len(b) > step]
    for x in there:
        (alone(x, True).square().mean() / len(there)).backward()
    other.step()
momenta = [s["momentum_buffer"] for s in optimizer.state.values()]
gap(model.module, alone), everybodys(model.parameters()), everybodys(momenta), steps
""",
        quiet=True,
    )
    for alone, weights, momenta, steps in found:
        assert alone < 1e-12 and weights == momenta == 0
        assert steps == 2 * (ranks.world_size - 1)


def test_torchs_join_leaves_other_momentum_on_each_rank(ranks):
    """The page says so: ranks that are done take no steps, and get the weights."""
    found = ranks.run(
        """
model = Theirs(nn.Linear(6, 2).double())
optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
with Join([model]):
    for x in batches[: 2 + rank].double():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
momenta = [s["momentum_buffer"] for s in optimizer.state.values()]
everybodys(model.parameters()), everybodys(momenta) > 1e-3
""",
        quiet=True,
    )
    assert found == [(0, True)] * ranks.world_size


def test_buffers_are_rank_0s_after_each_backward_and_forward_never_sends(ranks):
    """So rank 0 may evaluate alone, which waits for ever with torch's."""
    found = ranks.run(
        """
model = DDP(Net().double())
train(model, batches=batches.double())
same = everybodys(model.buffers())
def forward():
    if rank == 0:
        with torch.no_grad():
            model.eval()(batches[0].double())
same, counted(forward), counted(lambda: model.train()(batches[0].double()))
""",
        quiet=True,
    )
    assert found == [(0, [], [])] * ranks.world_size


def test_buffers_are_those_of_a_rank_that_still_has_a_batch(ranks):
    """Rank 0, which is done first, must not send its old ones again and again."""
    found = ranks.run(
        """
net = Net().double()
model = DDP(net)
optimizer = train(model, batches=batches[: 1 + 2 * rank].double())
while model.shadow():
    optimizer.step()
everybodys(model.buffers()), net.norm.num_batches_tracked.item()
""",
        quiet=True,
    )
    assert found == [(0, 2 * ranks.world_size - 1)] * ranks.world_size


def test_a_forward_without_gradients_leaves_the_next_backward_alone(ranks):
    """As with torch's, one may look at a batch between forward and backward."""
    found = ranks.run(
        """
model = DDP(nn.Linear(1, 1, bias=False).double())
x = torch.full((1, 1), 1.0 + rank).double()
loss = model(x).sum()
with torch.no_grad():
    model(x)
loss.backward()
model.module.weight.grad.item()
""",
        quiet=True,
    )
    assert found == pytest.approx([(ranks.world_size + 1) / 2] * ranks.world_size)


def test_after_a_backward_that_raised_the_next_one_averages(ranks):
    """What it has left behind, in hooks and on its way, is forgotten."""
    found = ranks.run(
        """
class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = (nn.Linear(1, 1, bias=False) for _ in range(2))
    def forward(self, x, fails=False):
        x = self.first(x)
        def look(grad):
            if fails:
                raise ArithmeticError("not a number")
        x.register_hook(look)
        return self.last(x)

model = DDP(Raises().double(), [1 / 2**20])
x = torch.full((1, 1), 1.0 + rank).double()
said = []
for fails in False, True, False:
    model.zero_grad()
    try:
        model(x, fails).sum().backward()
        said.append([everybodys([p.grad]) for p in model.parameters()])
    except ArithmeticError:
        said.append(len(model.works))
said
""",
        quiet=True,
    )
    assert found == [[[0, 0], 1, [0, 0]]] * ranks.world_size


@pytest.mark.parametrize("wrap", ["DDP", "Theirs"])
def test_going_around_the_wrapper_averages_nothing(ranks, wrap):
    """As with torch's: backward averages what its own forward has prepared.

    It makes no difference whether a step was before, nor whether others do the same.
    """
    found = ranks.run(
        f"""
model = {wrap}(nn.Linear(1, 1, bias=False).double())
x = torch.full((1, 1), 1.0 + rank).double()
def backward(call):
    model.zero_grad()
    call(x).sum().backward()
    return model.module.weight.grad.item()

before = backward(model.module)
through = backward(model)
after = backward(model.module)
sent = counted(lambda: backward(model.module) if rank == 0 else None)
before, through, after, sent
""",
        quiet=True,
    )
    mean = (ranks.world_size + 1) / 2
    for rank, result in enumerate(found):
        assert result == (1.0 + rank, pytest.approx(mean), 1.0 + rank, [])


@pytest.mark.parametrize("twice", ["two losses", "one loss"])
def test_only_the_first_backward_of_a_forward_averages(ranks, twice):
    """As with torch's: two forwards before two backwards, or one backward again."""
    found = ranks.run(
        f"""
def gradient(wrap):
    model = wrap(nn.Linear(1, 1, bias=False).double())
    x = torch.full((1, 1), 1.0 + rank).double()
    losses = [model(x).sum()] * 2 if {twice == "one loss"} else [
        model(x).sum(), model(10 * x).sum()]
    for loss in losses:
        loss.backward(retain_graph=True)
    return model.module.weight.grad.item()

gradient(DDP) - gradient(Theirs)
""",
        quiet=True,
    )
    assert found == pytest.approx([0] * ranks.world_size, abs=1e-12)


@pytest.mark.parametrize("reentrant", [True, False])
def test_each_layer_may_be_a_checkpoint(ranks, reentrant):
    """A reentrant one has a backward of its own, which ends before the whole one."""
    found = ranks.run(
        f"""
from torch.utils.checkpoint import checkpoint

class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(rank)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    def forward(self, x, branch):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant={reentrant}).tanh()
        return x

ours, theirs = DDP(Checkpointed().double()), Theirs(Checkpointed().double())
mine = batches.double().requires_grad_()
train(ours, batches=mine), train(theirs, batches=mine)
gap(ours, theirs), everybodys(ours.parameters())
""",
        quiet=True,
    )
    for from_torch, between_ranks in found:
        assert from_torch < 1e-12 and between_ranks == 0


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("nn.Linear(2, 2 + rank)", "others have other tensors than rank 0"),
        ("nn.Linear(2, 2, bias=rank == 0)", "have other tensors than rank 0"),
        ("nn.Linear(2, 2).to([torch.float, torch.double][rank % 2])", "have other"),
        ("nn.Linear(2, 2).requires_grad_(rank == 0)", "have other tensors"),
        ("nn.BatchNorm1d(2, track_running_stats=rank == 0)", "have other tensors"),
        ("nn.Linear(2, 2).requires_grad_(False)", "no parameter requires a gradient"),
        ("nn.ReLU()", "no parameter requires a gradient"),
    ],
)
def test_what_it_cannot_wrap_is_refused_on_all_ranks(ranks, module, why):
    """In a sentence, as torch's does, and before anything is sent."""
    found = ranks.run(
        f"""
def refused():
    try:
        DDP({module})
    except ValueError as error:
        return str(error)
refused(), counted(refused)
""",
        quiet=True,
    )
    others = [rank for rank in range(ranks.world_size) if rank]
    if "torch.double" in module:
        others = others[::2]
    why = f"ranks {others} have other tensors than rank 0" if "other" in why else why
    for said, sent in found:
        assert said.startswith(why) and sent == []


def test_it_has_at_most_a_hundred_lines():
    """As the page says, and without counting the bucket."""
    (node,) = ast.parse(inspect.getsource(ch8_ddp_by_hand.DDP)).body
    assert node.end_lineno <= 100


STEPS = {
    "ch8_per_parameter": "g g g g g g g g M M M M M M M M",
    "ch8_flat": "g g g g g g g g M",
    "ch8_buckets": "g g g g M g g M g g M",
    "ch8_ddp_by_hand": "g g g M g g g g g M",
}


@pytest.fixture(scope="module")
def pair():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", STEPS)
def test_the_script_shows_a_step_and_agrees_with_torch(name, pair):
    """Its messages come when the page says; its weights have torch's bits."""
    step, weights = run_on(pair, name, "--steps", "3")[0]
    assert step.startswith(f"[rank 0/2] one step: {STEPS[name]}; loss=")
    assert weights == "[rank 0/2] largest difference from torch's weights: 0"


def test_who_notes_messages_leaves_all_reduce_as_it_was():
    """Each call is noted and made; after an error, too, torch's own is back."""
    source = """
own, sizes = dist.all_reduce, []
try:
    with on_all_reduce(lambda x: sizes.append(x.numel())):
        dist.all_reduce(x := torch.ones(3))
        work = dist.all_reduce(y := torch.ones(5), async_op=True)
        work.wait()
        raise ArithmeticError
except ArithmeticError:
    pass
sizes, x[0].item(), y[0].item(), dist.all_reduce is own
"""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        assert ranks.run(source, quiet=True) == [([3, 5], 2, 2, True)] * 2


def test_the_ladder_can_be_foretold_with_a_pencil():
    """The page's arithmetic is that of the benchmark's model on its link."""
    link = parse(by_hand.LINK.removeprefix("link:")).across
    alpha, bandwidth = link.alpha_us / 1e6, link.gb_per_s * 1e9
    backward = by_hand.LAYERS * by_hand.LAYER_S
    layer = 4 * sum(p.numel() for p in nn.Linear(128, 128).parameters())
    buckets = by_hand.LAYERS // math.ceil(0.125 * 2**20 / layer)

    def sends(messages):
        size = layer * by_hand.LAYERS / messages
        return messages * seconds("all_reduce", size, 2, alpha, bandwidth)

    after = {
        2.46: sends(2 * by_hand.LAYERS),
        1.69: sends(1),
        1.14: waits(sends(buckets), backward, buckets),
        # sent from the hooks: a layer's messages take longer than its backward
        1.54: by_hand.LAYER_S + sends(2 * by_hand.LAYERS) - backward,
    }
    assert sends(2 * by_hand.LAYERS) > backward
    for ratio, waited in after.items():
        assert f"{1 + waited / backward:.2f}" == f"{ratio:.2f}"
    page = " ".join((ROOT / "book" / "ch8_ddp_by_hand.md").read_text("utf8").split())
    assert "295 / 120 = 2.46." in page and "makes 1.69." in page
    assert "137 / 120 is 1.14" in page and "185 ms makes 1.54" in page
