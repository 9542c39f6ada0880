"""FSDP2 with tied, frozen, ignored, unused and uneven weights, against one process."""

import pytest

from allranks import Ranks
from scripts import ch12_cases
from tests.ranks import run_on

START = """
import warnings
from types import SimpleNamespace
import scripts
import ch12_cases

warnings.filterwarnings("ignore", "FSDP2-wrapped module")
args, place = SimpleNamespace(steps=3, seed=0), (rank, world_size, device)

def rows():
    net = ch12_cases.Net(tied=False, frozen=False)
    ch12_cases.shard(net, "all trains")
    layer = net.layers[0]
    return len(layer.base.weight.to_local()), len(layer.scale.to_local())

def refusal():
    try:
        ch12_cases.compare("tied, in two units", args, *place)
    except ValueError as error:
        return str(error)

CASES = [case for case in ch12_cases.CASES if "two units" not in case]
{case: ch12_cases.compare(case, args, *place) for case in CASES}, rows(), refusal()
"""
REFUSED = "Parameter 'head.weight' is shared with a parameter already managed"


@pytest.fixture(scope="module", params=[2, 3, 4], ids="W={}".format)
def found(request):
    """Return what each rank found for each case, and how many rows it has."""
    with Ranks(request.param) as ranks:
        return ranks.run(START, quiet=True)


def test_all_but_one_train_what_one_process_does(found):
    """What FSDP2 ignores drifts apart, and is seen at once."""
    for cases, *_ in found:
        wrong, _ = cases.pop("scale ignored")
        assert len(cases) == 5 and max(gap for gap, _ in cases.values()) < 1e-12
        assert wrong > 1e-6


def test_a_tie_across_units_is_refused(found):
    """Each unit would update a copy of its own."""
    assert {refusal.startswith(REFUSED) for *_, refusal in found} == {True}


def test_what_is_frozen_is_gathered_and_not_reduced(found):
    """A base has 9 x 9 and 9 numbers of 8 bytes; of two layers, one part each."""
    size = len(found)
    rows = -(-9 // size)  # each rank's part is padded to the largest
    less = 2 * 8 * (size - 1) * rows * (9 + 1)
    for cases, *_ in found:
        assert cases["all trains"][1] - cases["base frozen"][1] == pytest.approx(less)


def test_odd_sizes_leave_some_ranks_less(found):
    """As torch.chunk deals rows out; a single number is on rank 0 alone."""
    wanted = {2: [5, 4], 3: [3, 3, 3], 4: [3, 3, 3, 0]}[len(found)]
    assert [rows for _, (rows, _), _ in found] == wanted
    assert [num for _, (_, num), _ in found] == [1] + [0] * (len(found) - 1)


def test_the_script_prints_each_case():
    with Ranks(2) as ranks:
        lines = [one.partition("] ")[2] for one in run_on(ranks, "ch12_cases")[0]]
    assert len(lines) == len(ch12_cases.CASES)
    for case, line in zip(ch12_cases.CASES, lines, strict=True):
        wanted = f"{case:23} {REFUSED}" if "two units" in case else case
        assert line.startswith(wanted)
        assert (" off, sends " in line) == ("two units" not in case)


def test_impossible_flags_are_refused():
    with pytest.raises(SystemExit, match=r"^--steps 0: must be 1 to 65536$"):
        ch12_cases.parse_args(["--steps=0"])
