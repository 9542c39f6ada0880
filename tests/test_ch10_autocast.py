"""Operations, layers and sums have the dtypes that the page says."""

import re

import pytest
import torch

from allranks import Ranks
from scripts import ch10_autocast as script
from tests.ranks import run_script


def test_autocasts_lists_are_found_by_asking():
    """Products are low, losses are float32, and the rest follows its input."""
    low, full = torch.bfloat16, torch.float32
    found = script.dtypes(torch.device("cpu"), low)
    assert found == {
        (low, low): ["linear", "attention"],
        (full, low): ["softmax", "layer_norm", "sum"],
        (full, full): ["cross_entropy", "mse_loss", "prod", "x + float32"],
    }


RUN = """
from types import SimpleNamespace

from torch.distributed.fsdp import MixedPrecisionPolicy
from scripts import ch10_autocast as script

args = SimpleNamespace(samples=64, width=32, seed=2)
def run(**how):
    return script.train(args, torch.device("cpu"), **how)
low, full = torch.bfloat16, torch.float32
exact, plain = run(), run(low=low)
found = {again: run(low=low, again=again) for again in ("checkpoint", "by hand")}
dtypes = {"full": (low, full), "low": (low, low), "none": (full, full)}
for name, policy in dtypes.items():
    found[name] = run(policy=MixedPrecisionPolicy(*policy))
{
    "exact": exact[1],
    "plain": plain[1],
    **{n: (script.off(g, exact[0]), torch.equal(g, plain[0]), seen)
       for n, (g, seen) in found.items()},
}
"""


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_have_the_dtypes_and_errors_of_the_page(world_size):
    with Ranks(world_size) as ranks:
        found = ranks.run(RUN, quiet=True)
    assert found == [found[0]] * world_size
    of, low, full = found[0], "torch.bfloat16", "torch.float32"
    assert of["exact"] == [full] and of["plain"] == [low]
    assert of["checkpoint"][1:] == (True, [low, low])  # bit for bit
    assert of["by hand"][1:] == (False, [low, full])
    assert of["none"][0] < 1e-6 and of["none"][2] == [full]
    assert 1e-4 < of["full"][0] < 3e-2 and of["full"][2] == [low]
    assert of["low"][0] > of["full"][0] or world_size == 1


def test_the_script_prints_lists_and_errors():
    lines = run_script("ch10_autocast", 2, "--samples", "32", "--width", "16")[0]
    assert len(lines) == 10
    assert len([line for line in lines if re.search(r"e-0\d off$", line)]) == 5
    found = [re.search(r"(\S+) off from plain autocast$", line) for line in lines]
    right, forgotten = (float(one[1]) for one in found if one)
    assert right == 0 < forgotten
