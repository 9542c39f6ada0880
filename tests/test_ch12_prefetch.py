"""Gathers that are ahead change when a message leaves, and nothing else."""

import pytest

from allranks import Ranks
from scripts import ch12_prefetch
from tests.ranks import run_on
from tests.test_ch12_zero import START

MORE = """
from ch12_prefetch import Ahead, InTurn

def order(make):
    # +2 as unit 2's gather begins, 2 as it computes, -2 as its gradient is there.
    layers = [nn.Linear(5, 5, bias=False) for _ in range(3)]
    net, seen = nn.Sequential(*layers), []
    way = make(net, [[layer] for layer in layers], adamw)
    start = way.start
    way.start = lambda unit: (seen.append(f"+{way.units.index(unit)}"), start(unit))
    for n, layer in enumerate(layers):  # after the hooks of the way
        layer.register_forward_pre_hook(lambda *_, n=n: seen.append(f"{n}"))
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, n=n: seen.append(f"-{n}"))
    way.model(torch.ones(2, 5)).sum().backward()
    way.step()
    return " ".join(seen)

def stale(make):
    # A unit that is gathered ahead, and left out: the next step must gather it anew.
    net = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in range(2)))
    way = make(net, [[layer] for layer in net], adamw)
    net[0](torch.ones(2, 5))
    way.share()
    return len(way.works), num_bytes([*net.parameters()])

def most(make):
    # The most bytes of weights, and those of a layer.
    net = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
    way = make(net, [[layer] for layer in net], adamw)
    with Meter(net, way.optimizer) as meter:
        way.model(torch.ones(2, 6)).sum().backward()
        way.step()
    return meter.held["weights"] / (4 * 36)
"""


@pytest.fixture(scope="module", params=[1, 2, 3], ids="W={}".format)
def ranks(request):
    """Yield live ranks that have both ways."""
    with Ranks(request.param) as ranks:
        ranks.run(START + MORE, quiet=True)
        yield ranks


@pytest.mark.parametrize("way", ["InTurn", "Ahead"])
def test_each_weight_and_gradient_is_that_of_one_process(ranks, way):
    """Also of the net with shared, frozen and uneven weights."""
    for found in ranks.run(f"gaps({way})", quiet=True):
        assert {name: gap for name, gap in found.items() if gap > 1e-12} == {}


ORDER = {
    "InTurn": "+0 0 +1 1 +2 2 +2 -2 +1 -1 +0 -0",
    "Ahead": "+0 +1 0 +2 1 2 +2 +1 -2 +0 -1 -0",
}


@pytest.mark.parametrize("way", ORDER)
def test_a_gather_begins_before_the_unit_before_it_computes(ranks, way):
    """Forward and backward, and each unit is gathered twice."""
    assert ranks.run(f"order({way})", quiet=True) == [ORDER[way]] * ranks.world_size


def test_what_was_gathered_in_vain_is_let_go(ranks):
    """Or the step after it would use weights from before the update."""
    assert ranks.run("stale(Ahead)", quiet=True) == [(0, 0)] * ranks.world_size


def test_no_unit_is_gathered_that_is_there(ranks):
    """Twice in each of six steps; the first unit has the first and the last layer."""
    found = ranks.run(
        """
way = train(Ahead)[1]
numbers = [number for number, *_ in way.messages]
{numbers.count(unit) for unit in range(len(way.units))}
""",
        quiet=True,
    )
    assert found == [{12}] * ranks.world_size


def test_one_more_layer_is_there_at_a_time(ranks):
    """The price of gathers that are ahead."""
    size = ranks.world_size
    for found in ranks.run("most(InTurn), most(Ahead)", quiet=True):
        assert found == pytest.approx((4 / size + 1, 4 / size + 2))


def test_the_script_says_when_messages_came():
    """Each unit's gathers, of which the last unit's comes twice in a row."""
    flags = "--layers=2", "--width=64", "--windows=1"
    with Ranks(2) as ranks:
        lines = [
            one.partition("] ")[2] for one in run_on(ranks, "ch12_prefetch", *flags)[0]
        ]
    assert [line.partition(":")[0] for line in lines[::9]] == ["in turn", "ahead"]
    for start in 1, 10:
        units = [line.split(":")[0] for line in lines[start : start + 8]]
        assert units == [f"  unit {n}" for n in (0, 1, 2, 3, 3, 2, 1, 0)]


def test_impossible_flags_are_refused():
    with pytest.raises(SystemExit, match=r"^--windows 0: must be 1 to 65536$"):
        ch12_prefetch.parse_args(["--windows=0"])
