"""A checkpoint of any number of ranks goes on with any other, to the last window."""

import os

import pytest
import torch
from safetensors.torch import load_file

from allranks import Ranks
from scripts import ch12_reshard
from tests.ranks import run_script

START = """
import warnings
from types import SimpleNamespace
from ch12_replicas import off
from ch12_reshard import DeviceMesh, Run

warnings.filterwarnings("ignore", "FSDP2-wrapped module")
args = SimpleNamespace(layers=1, steps=2, seed=0)

def begin(seed, alone=False):
    torch.manual_seed(seed)
    mesh = None if alone else DeviceMesh("cpu", [*range(world_size)])
    return Run(args, device, mesh)
"""
SAVE = "run = begin(0)\nrun.train(2)\nrun.save(folder)"
LOAD = """
run = begin(7)  # other weights than those that were saved
run.load(folder)
run.train(2)
ours, alone = run.whole(), begin(0, alone=True)
alone.train(4)
theirs = alone.whole()
moments = [name for name in theirs if name.endswith("exp_avg_sq")]
at = run.step, torch.equal(run.dice.get_state(), alone.dice.get_state())
gap = off(ours, theirs) if rank == 0 else 0  # other ranks get nothing
gap, len(ours), len(moments), at
"""


def play(world_size, folder, source):
    """Run code on new ranks, which share a folder."""
    with Ranks(world_size) as ranks:
        ranks.push({"folder": str(folder)})
        ranks.run("import scripts\n" + START, quiet=True)
        return ranks.run(source, quiet=True)


@pytest.mark.parametrize("before, after", [(4, 3), (4, 2), (4, 1), (1, 4), (2, 3)])
def test_other_ranks_go_on_as_one_process_would(before, after, tmp_path):
    """Weights, moments and the place in the text are those of an unbroken run."""
    play(before, tmp_path, SAVE)
    assert len([*tmp_path.glob("*.distcp")]) == before
    found = play(after, tmp_path, LOAD)
    gap, num, moments, _ = found[0]
    assert gap < 1e-12 and moments == 18
    assert num == 4 * 18  # weights, two moments and a step count
    assert [at for *_, at in found] == [(4, True)] * after


def test_the_script_ends_with_a_plain_file(tmp_path, monkeypatch):
    """Its legs of 3, 2, 1 and 3 ranks make one run, whose file a plain module reads."""
    folder = tmp_path / "runs"
    first, *_ = run_script("ch12_reshard", 3, f"--folder={folder}", "--steps=1")
    said = [line.removeprefix("[rank 0/3] ") for line in first]
    legs = zip((3, 2, 1, 3), (1, 2, 3, 4), strict=True)
    wanted = [f"{n} ranks: step {step}, {n + 1} files" for n, step in legs]
    assert said[:4] == wanted
    gap, same = said[4].removeprefix("one process: 72 tensors ").split(" off; ")
    assert float(gap) < 1e-12 and same == "same windows next: True"
    assert said[5] == f"{folder}/plain.safetensors: 0e+00 off"
    net = ch12_reshard.GPT(layers=1).double()
    net.load_state_dict(load_file(folder / "plain.safetensors"))
    assert all(p.dtype == torch.double for p in net.parameters())


def test_a_folder_that_exists_is_refused(tmp_path):
    """Unless it may be written over."""
    flag = f"--folder={tmp_path}"
    why = f"^{tmp_path} exists: --overwrite it, or name another$"
    with pytest.raises(SystemExit, match=why):
        ch12_reshard.parse_args([flag])
    assert ch12_reshard.parse_args([flag, "--overwrite"]).folder == str(tmp_path)


@pytest.mark.parametrize("name", ["", "no/such/folder"])
def test_a_folder_that_cannot_be_made_is_refused(name):
    with pytest.raises(SystemExit, match=f"^--folder '{name}': name one that can be"):
        ch12_reshard.parse_args([f"--folder={name}"])
    assert not os.path.exists("no")


def test_more_ranks_than_windows_are_refused():
    args = ch12_reshard.parse_args(["--folder=never_made"])
    with pytest.raises(
        SystemExit, match=r"^13 ranks share 12 windows: start 12 at most$"
    ):
        ch12_reshard.main(args, 0, 13, torch.device("cpu"))
