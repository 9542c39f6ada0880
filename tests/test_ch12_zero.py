"""ZeRO 1, 2 and 3 by hand train what one process trains, in the bytes of a formula."""

import re

import pytest

from allranks import Ranks
from scripts import ch12_replicas, ch12_zero, meter
from tests.ranks import run_on

START = """
from torch import nn
from scripts import ch12_zero
from ch12_replicas import Alone, Replicas
from ch12_zero import Zero2, Zero3
from ch12_zero1 import Zero1
from meter import Meter, num_bytes, predict

class Lora(nn.Module):
    # A frozen layer beside two small ones that train.
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 5)
    def forward(self, x):
        return self.base(x).sin() + self.up(self.down(x))

class Net(nn.Module):
    # Sizes that no number of ranks divides, a buffer, weights that two layers
    # share, layers of which a part is frozen, and layers of which all is.
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.first, self.second, self.third = Lora(), Lora(), nn.Linear(5, 5)
        self.third.requires_grad_(False)
        self.bias = nn.Linear(5, 1, bias=False)
        self.register_buffer("scale", torch.randn(5))
        self.head = nn.Linear(5, 7)
        self.head.weight = self.words.weight
    def units(self):
        layers = self.first, self.second, self.third, self.bias
        return [[self.words, self.head], *([layer] for layer in layers)]
    def forward(self, x):
        x = self.second(self.first(self.words(x)).tanh()) * self.scale
        x = self.third(x.cos())
        return self.head(x + self.bias(x))

def frozen_first(seed):
    # A net whose first layers are frozen: no gradient comes to their input.
    torch.manual_seed(seed)
    layers = [Lora() for _ in range(3)]
    layers[0].requires_grad_(False)
    return nn.Sequential(*layers).double()

def loss(model, x):  # x (B,) of words
    return nn.functional.cross_entropy(model(x), (x + 1) % 7)

dice = torch.Generator().manual_seed(3)
words = torch.randint(7, (6, world_size, 4), generator=dice)

def adamw(params):  # eps: a step of g / |g| would make much of rounding near g = 0
    return torch.optim.AdamW(params, 0.01, eps=1e-4)

def train(make, dtype=torch.double, parts=1):
    # All weights, and the gradients of each step, by name.
    alone = make is Alone
    torch.manual_seed(0 if alone else rank)
    net, grads = Net().to(dtype), []
    way = make(net, net.units(), adamw)
    way.optimizer.register_step_pre_hook(lambda *_: grads.append(way.whole(True)))
    for x in words:
        batch = x if alone else x[rank : rank + 1]
        for part in batch.chunk(parts, dim=1):
            loss(way.model, part.flatten()).backward()
        way.step()
    return {**way.whole(False), **{f"{n} {k}": g for k, of in enumerate(grads)
                                   for n, g in of.items()}}, way

def gaps(make, **how):
    theirs, ours = train(Alone, **how)[0], train(make, **how)[0]
    assert ours.keys() == theirs.keys() and len(ours) > 40
    return {n: (ours[n] - theirs[n]).abs().max().item() for n in theirs}
"""
STAGES = "Zero1", "Zero2", "Zero3"


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have all three, a net and batches of their own."""
    with Ranks(request.param) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.fixture(scope="module")
def two():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.mark.parametrize("stage", STAGES)
def test_each_weight_and_each_gradient_of_each_step_is_that_of_one_process(
    ranks, stage
):
    """With shared, frozen and uneven weights and a buffer, which start as rank 0's."""
    for found in ranks.run(f"gaps({stage})", quiet=True):
        assert {name: gap for name, gap in found.items() if gap > 1e-12} == {}
    for found in ranks.run(f"gaps({stage}, dtype=torch.float)", quiet=True):
        assert max(found.values()) < 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_batches_before_the_step_add_up(ranks, stage):
    """As they do in one process, though ZeRO 2 and 3 free each batch's gradients."""
    for found in ranks.run(f"gaps({stage}, parts=2)", quiet=True):
        assert max(found.values()) < 1e-12


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_whole_when_forward_needs_them(ranks, stage):
    """A forward without gradients gives what one process's weights give."""
    found = ranks.run(
        f"""
(_, ours), (_, alone) = train({stage}), train(Alone)
with torch.no_grad():
    gap = (ours.model(words[0, 0]) - alone.model(words[0, 0])).abs().max().item()
gap
""",
        quiet=True,
    )
    assert max(found) < 1e-12


def test_zero_3_holds_a_part_of_each_weight_between_steps(ranks):
    """What is frozen is cut as well, and the whole weights have no memory."""
    found = ranks.run(
        """
_, way = train(Zero3)
units = way.units + way.frozen
whole = num_bytes([*way.net.parameters()])
num = {n for n, p in way.net.named_parameters() if not p.requires_grad}
cut = {n for unit in way.frozen for n in unit.params}
parts = [unit.shard.nbytes for unit in units]
rounded = [8 * -(-sum(unit.sizes) // world_size) for unit in units]
whole, num == cut and len(cut) > 4, parts == rounded
""",
        quiet=True,
    )
    assert found == [(0, True, True)] * ranks.world_size


def test_zero_3_lets_frozen_weights_go_during_backward(ranks):
    """All but those whose input has no gradient, which go with the step."""
    found = ranks.run(
        """
net = frozen_first(rank)
way = Zero3(net, [[layer] for layer in net], adamw)
way.model(torch.randn(3, 5).double()).sum().backward()
there = [unit.full.untyped_storage().nbytes() > 0 for unit in way.frozen]
way.step()
there, num_bytes([*net.parameters()])
""",
        quiet=True,
    )
    assert found == [([False, True, False], 0)] * ranks.world_size


def test_bytes_of_uneven_units_are_the_formulas(ranks):
    """To the byte, for all stages, whatever the sizes leave over."""
    found = ranks.run(
        """
def count(make):
    torch.manual_seed(rank)
    net = nn.Sequential(*(nn.Linear(a, b) for a, b in ((5, 9), (9, 3), (3, 1))))
    units = [[layer] for layer in net]
    way, x = make(net, units, adamw), torch.ones(2, 5)
    for _ in range(2):  # in DDP's second step rank 0 sends its order of buckets
        way.model(x).sum().backward()
        way.step()
    with Meter(net, way.optimizer) as meter:
        way.model(x).sum().backward()
        way.step()
    sizes = [[p.numel() for p in layer.parameters()] for layer in net]
    num, counted = sum(map(sum, sizes)), meter.held | {"sent": meter.sent}
    told = predict(make.stage, sizes, world_size)
    return {k: (counted[k], told[k] * num) for k in told}
[count(make) for make in (Replicas, Zero1, Zero2, Zero3)]
""",
        quiet=True,
    )
    for stages in found:
        for stage in stages:
            assert stage.keys() == {"weights", "gradients", "states", "sent"}
            for counted, predicted in stage.values():
                assert counted == pytest.approx(predicted, rel=1e-12)


def test_the_formulas_are_those_of_the_paper():
    """Of large models: 16 bytes, 8 + 8 / W, 4 + 12 / W, 16 / W; 2, 2, 2, 3 times."""
    units, size = [[12_000_000]] * 10_000, 64
    held = [sum(meter.predict(stage, units, size).values()) for stage in range(4)]
    sent = [meter.predict(stage, units, size)["sent"] for stage in range(4)]
    bytes_ = [total - each for total, each in zip(held, sent, strict=True)]
    wanted = [16, 8 + 8 / size, 4 + 12 / size, 16 / size]
    assert bytes_ == pytest.approx(wanted, abs=2e-3)
    assert [each / (4 * (1 - 1 / size)) for each in sent] == pytest.approx([2, 2, 2, 3])


def test_the_script_prints_what_it_predicts(ranks):
    """Of DDP and of each stage: equal bytes, and what one process trains."""
    flags = "--layers=2", "--steps=2"
    lines = []
    for script in "ch12_replicas", "ch12_zero1", "ch12_zero":
        head, *rest = run_on(ranks, script, *flags)[0]
        assert head.endswith("bytes per parameter, counted (predicted):")
        lines += rest
    names = ["DDP", "ZeRO-1", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
    assert [line.split()[2] for line in lines] == [n for n in names for _ in range(3)]
    for held, double, single in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        pairs = re.findall(r"(weights|gradients|states|sent) (\S+) \((\S+)\)", held)
        assert len(pairs) == 4 and all(a == b for _, a, b in pairs), held
        for line, most in (double, (1e-12, 1e-12)), (single, (1e-4, 1e-6)):
            found = re.findall(r"(?:weights|gradients) (\S+?)(?:,|$)", line)
            assert [float(a) < b for a, b in zip(found, most, strict=True)] == [
                True
            ] * 2


BAD = {
    "[[net[0]], [net[1], net[0]]]": "0.weight is in 2 units, not in 1",
    "[[net[0]]]": "1.weight is in 0 units, not in 1",
}


@pytest.mark.parametrize("units", BAD)
def test_units_that_overlap_or_miss_a_weight_are_refused(two, units):
    """Else a weight would be updated twice, or never."""
    found = two.run(
        f"""
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
try:
    Zero3(net, {units}, adamw)
except ValueError as error:
    said = str(error)
said
""",
        quiet=True,
    )
    assert found == [BAD[units]] * 2


UNUSED = {
    "net[0](x)": "1.weight",
    "x": "0.weight",
    "net(x)": "1.spare",
}


@pytest.mark.parametrize("use", UNUSED)
@pytest.mark.parametrize("stage", STAGES)
def test_a_weight_without_a_gradient_is_refused(two, stage, use):
    """Its unit would never leave, or leave with less."""
    found = two.run(
        f"""
net, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2)
net[1].spare = nn.Parameter(torch.ones(2))
way = {stage}(net, [[layer] for layer in net], adamw)
y = {use}
if y.requires_grad:
    y.sum().backward()
try:
    way.step()
except RuntimeError as error:
    said = str(error)
said
""",
        quiet=True,
    )
    assert found == [f"{UNUSED[use]} has no gradient: all need one here"] * 2


@pytest.mark.parametrize("stage", STAGES)
def test_a_weight_that_a_later_batch_leaves_out_is_refused(two, stage):
    """The unit's gradients of the batch before must not hide it."""
    found = two.run(
        f"""
class Either(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    def forward(self, x, both):
        return x * self.one.sum() + (self.other.sum() if both else 0)

net, said = Either(), None
way = {stage}(net, [[net]], adamw)
for both in True, False:
    net(torch.ones(1), both).backward()
try:
    way.step()
except RuntimeError as error:
    said = str(error)
said
""",
        quiet=True,
    )
    wanted = None if stage == "Zero1" else "other has no gradient: all need one here"
    assert found == [wanted] * 2


@pytest.mark.parametrize("script", [ch12_replicas, ch12_zero])
def test_impossible_flags_are_refused(script):
    with pytest.raises(SystemExit, match=r"^--layers 0: must be 1 to 65536$"):
        script.parse_args(["--layers=0"])
