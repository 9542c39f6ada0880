"""FSDP2 with each option trains what one process trains, in the bytes of a formula."""

import math
import re

import pytest

from allranks import Ranks, RanksError
from scripts import ch12_fsdp
from tests.ranks import run_on
from tests.test_ch12_zero import START

MORE = """
import warnings
from types import SimpleNamespace
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
import ch12_fsdp
import ch12_hsdp
from tasks import GPT

warnings.filterwarnings("ignore", "FSDP2-wrapped module|DTensor random")
args = SimpleNamespace(layers=1, steps=2, seed=0)
place = rank, world_size, device
options = {"per layer": {}, "kept": {"reshard_after_forward": False},
           "one unit": {"units": False}, "one ahead": {"ahead": True},
           "2 batches": {"parts": 2}, "meta": {"meta": True}}
bf16 = {"bf16": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}}

class Theirs(Alone):
    # FSDP2 for the net of the tests of ZeRO: one unit for each of its own.
    def __init__(self, net, units, make_optimizer):
        for tensor in [*net.parameters(), *net.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        for modules in units:
            fully_shard(modules)
        fully_shard(net)
        super().__init__(net, units, make_optimizer)
    def whole(self, grads):
        return ch12_fsdp.whole(super().whole(grads).items())
"""


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have the options to try."""
    with Ranks(request.param) as ranks:
        ranks.run(START + MORE, quiet=True)
        yield ranks


@pytest.fixture(scope="module")
def four():
    """Yield two machines of two ranks each."""
    with Ranks(4) as ranks:
        ranks.run(START + MORE, quiet=True)
        yield ranks


@pytest.fixture(scope="module")
def trained(ranks):
    """Return how far off each option is and what it holds, by rank and by precision."""
    return ranks.run(
        """
of = lambda options, dtype: {
    name: (gaps, dict(meter.held | {"sent": meter.sent}))
    for name, gaps, meter in ch12_fsdp.compare(options, args, dtype, *place)}
single = {name: options[name] for name in ("per layer", "2 batches")}
of(options, torch.double), of(single | bf16, torch.float)
""",
        quiet=True,
    )


def test_each_option_trains_what_one_process_trains(trained):
    """Each weight, each gradient and the norm that they are clipped by."""
    for double, single in trained:
        assert len(double) == 6
        assert max(max(gaps) for gaps, _ in double.values()) < 1e-12
        weights, gradients = single["bf16"][0]
        assert weights < 2e-2 and 1e-6 < gradients < 2e-2
        for name in "per layer", "2 batches":
            weights, gradients = single[name][0]
            assert weights < 1e-4 and gradients < 1e-6


def test_shared_frozen_and_uneven_weights(ranks):
    """Of the net on which ZeRO by hand is tested: each gradient of each step."""
    for found in ranks.run("gaps(Theirs)", quiet=True):
        assert {name: gap for name, gap in found.items() if gap > 1e-12} == {}


def test_the_weights_begin_as_rank_0s(ranks):
    """FSDP2 sends none: without a broadcast each rank's rows would be its own."""
    found = ranks.run(
        """
net = ch12_fsdp.make(args, torch.double, device)
torch.manual_seed(args.seed)
ours, theirs = ch12_fsdp.whole(net.named_parameters()), GPT(layers=1).double()
all(torch.equal(p, ours[n]) for n, p in theirs.named_parameters())
""",
        quiet=True,
    )
    assert found == [True] * ranks.world_size


def test_meta_initialisation_draws_other_numbers_on_each_rank(ranks):
    """On CPUs a seed that all share would give all shards the same rows."""
    found = ranks.run(
        """
net = ch12_fsdp.make(args, torch.double, device, meta=True)
rows = net.blocks[0].up.weight.full_tensor().chunk(world_size)[1:]
mine = net.blocks[0].up.weight.to_local()
norm = net.blocks[0].norm1
std = [p.full_tensor().std().item() for p in (norm.weight, norm.bias)]
same = [torch.equal(mine, other) for other in rows] if rank == 0 else []
any(same), std, bool(mine.isfinite().all())
""",
        quiet=True,
    )
    assert found == [(False, [0.0, 0.0], True)] * ranks.world_size


def sizes(layers=1, dim=64):
    """Return the (rows, columns) of a GPT's parameters, unit by unit."""
    shapes = [(dim, 1)] * 4  # two norms
    shapes += [(3 * dim, dim), (3 * dim, 1), (dim, dim), (dim, 1)]
    shapes += [(4 * dim, dim), (4 * dim, 1), (dim, 4 * dim), (dim, 1)]
    first, last = [(256, dim), (64, dim)], [(dim, 1)] * 2 + [(256, dim), (256, 1)]
    return [first, *[shapes] * layers, last]


def counted(size, groups, kept=False):
    """Return bytes by kind for float64 weights, cut by rows into ``size`` parts."""
    whole = [sum(rows * columns for rows, columns in unit) for unit in groups]
    parts = [sum(math.ceil(r / size) * c for r, c in unit) for unit in groups]
    after = [sum(parts[place + 1 :]) for place in range(len(parts))]
    gathered = sum(parts) if kept else max(parts)
    sent = (2 if kept else 3) * (size - 1) * sum(parts)
    return {
        "weights": 8 * (sum(parts) + size * gathered),
        "gradients": 8 * max(map(sum, zip(whole, after, strict=True))),
        "states": 16 * sum(parts),
        "sent": 8 * sent,
    }


def test_bytes_are_the_formulas(ranks, trained):
    """Those of ZeRO-3, where nothing is kept; on rank 0, whose parts are largest."""
    double, single = ({n: b for n, (_, b) in some.items()} for some in trained[0])
    size, groups = ranks.world_size, sizes()
    layer = counted(size, groups)
    assert double["per layer"] == pytest.approx(layer)
    assert single["per layer"] == pytest.approx({k: n / 2 for k, n in layer.items()})
    assert double["meta"] == double["per layer"]
    assert double["kept"] == pytest.approx(counted(size, groups, kept=True))
    one = counted(size, [[each for unit in groups for each in unit]], kept=True)
    assert double["one unit"] == pytest.approx(one)


def test_hsdp_with_meta_initialisation_starts_equal_replicas(four):
    """Of replicas that drew other weights, each would train a model of its own."""
    found = four.run(
        """
mesh = ch12_hsdp.make_mesh(world_size, device)
net = ch12_fsdp.make(args, torch.double, device, meta=True, mesh=mesh)
p = net.blocks[0].up.weight
p.to_local().sum().item(), p.full_tensor().sum().item()
""",
        quiet=True,
    )
    parts, wholes = zip(*found, strict=True)
    assert parts[0] == parts[2] != parts[1] == parts[3] and len({*wholes}) == 1


RINGS = {
    "FSDP2": "G [0, 1, 2, 3], S [0, 1, 2, 3]",
    "HSDP": "G [0, 1], S [0, 1], A [0, 2]",
    "HSDP meta": "G [0, 1], S [0, 1], A [0, 2]",
}
LINKS = {  # bytes per parameter: on a link in a machine, and out of a machine
    "FSDP2": (3 * 4 * 3 / 4, 3 * 4 * 3 / 4),
    "HSDP": (3 * 4 / 2, 2 * 4 / 2),
    "HSDP meta": (3 * 4 / 2, 2 * 4 / 2),
    "FSDP2 bf16": (2 * 4 * 3 / 4, 2 * 4 * 3 / 4),
    "HSDP bf16": (2 * 4 / 2, 2 * 4 / 2),
    "FSDP2 2 batches": (5 * 4 * 3 / 4, 5 * 4 * 3 / 4),
    "HSDP 2 batches": (5 * 4 / 2, 2 * 4 / 2),
}


@pytest.mark.timeout(300)  # four ranks, ten trainings
def test_hsdp_gathers_in_a_machine_and_sends_gradients_out_of_it(four):
    """On ranks 0 and 1, and 2 and 3; each count is the prediction beside it."""
    _, *lines = run_on(four, "ch12_hsdp", "--layers", "1", "--steps", "1")[0]
    found = {"sends": {}, "holds": {}, "runs": {}, "weights,": {}}
    for line in lines:
        words = r"\[rank 0/4\] (.+?) +(sends|holds|runs|weights,) (.+)"
        name, verb, text = re.fullmatch(words, line).groups()
        found[verb][name] = text
    for text in [*found["sends"].values(), *found["holds"].values()]:
        pairs = re.findall(r"([\d.]+) \(([\d.]+)\)", text)
        assert len(pairs) >= 2 and all(counted == told for counted, told in pairs)
    sends = {name: text.split() for name, text in found["sends"].items()}
    assert {n: (float(t[1]), float(t[4])) for n, t in sends.items()} == LINKS
    assert found["runs"] == RINGS
    for text in found["weights,"].values():
        gaps = [float(gap) for gap in re.findall(r"\d+e-\d+", text)]
        assert max(gaps[:2]) < 1e-12 and gaps[2] < 1e-4 and gaps[3] < 1e-6


def test_hsdp_with_one_machine_is_refused(ranks):
    if ranks.world_size == 2:
        words = "2 ranks are not two machines of 2, or more: start 4"
        with pytest.raises(RanksError, match=words):
            run_on(ranks, "ch12_hsdp")


ORDER = {
    "per layer": "G G f0 G f1 G G G S G b1 S G b0 S S",
    "kept": "G G f0 G f1 G S b1 S b0 S S",
    "one unit": "G f0 f1 b1 b0 S",
    "one ahead": "G G G f0 f1 G G G S G b1 S G b0 S S",
    "2 batches": "G G f0 G f1 G G G G b1 G b0 G G f0 G f1 G G G S G b1 S G b0 S S",
    "bf16": "G G f0 G f1 G G G S G b1 S G b0 S S",
    "meta": "G G f0 G f1 G G G S G b1 S G b0 S S",
}


def test_the_script_prints_what_runs_when():
    """Forward gathers a unit, or the one after it, too; backward always does."""
    with Ranks(2) as ranks:
        head, *lines = run_on(ranks, "ch12_fsdp", "--steps", "1")[0]
    assert head.endswith("bytes per parameter; weights, gradients off; then what runs:")
    found = {}
    for held, order in zip(lines[::2], lines[1::2], strict=True):
        name = held.removeprefix("[rank 0/2] ")[:9].strip()
        found[name] = order.removeprefix("[rank 0/2] ").strip()
        off = float(re.search(r"; (.+), .+ off$", held)[1])
        assert (
            (1e-3 if name == "bf16" else 0) < off < (1e-2 if name == "bf16" else 1e-5)
        )
    assert found == ORDER


def test_bf16_sends_two_thirds(ranks, trained):
    """Gathers send half the bytes, and gradients leave in float32 as they did."""
    for _, single in trained if ranks.world_size > 1 else ():
        whole, half = (single[name][1]["sent"] for name in ("per layer", "bf16"))
        assert half == pytest.approx(whole * 2 / 3)


def test_impossible_flags_are_refused():
    with pytest.raises(SystemExit, match=r"^--steps 0: must be 1 to 65536$"):
        ch12_fsdp.parse_args(["--steps=0"])
