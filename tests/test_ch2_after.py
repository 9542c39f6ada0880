"""Chapter 2's script trains the same before and after the move to DDP."""

import os
import re
import runpy
import sys

import pytest
import torch

from allranks import Ranks, vgpu
from scripts import ch2_after, ch2_before

WAY_OUT = "name a file that can be written"
STEPS = ["--epochs=2", "--samples=36", "--batch-size=24"]  # 24 + 12


def train(script, flags, device="cpu", spread=0.0):
    """Run a script's train() in float64; return its losses.

    Args:
        spread: rank r adds r times this to its first weights, so that the losses show
            whether it then gets rank 0's.
    """
    import importlib

    import torch
    import torch.distributed as dist

    module = importlib.import_module(f"scripts.{script}")
    make_task = module.make_task

    def make_other_task(num):
        train_set, test_set, net = make_task(num)
        with torch.no_grad():
            for param in net.parameters() if dist.is_initialized() else ():
                param += spread * dist.get_rank()
        few = (part[:20] for part in test_set.tensors)  # in float64 all take 0.3 s
        return train_set, torch.utils.data.TensorDataset(*few), net

    before = torch.get_default_dtype(), torch.get_num_threads()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        module.make_task = make_other_task
        losses = module.train(module.parse_args(flags), torch.device(device))
    finally:
        module.make_task = make_task
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])
    return torch.stack([loss.cpu() for loss in losses])


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """Return losses (steps,) and checkpoint of DataParallel on four virtual GPUs."""
    file = tmp_path_factory.mktemp("before") / "ch2.pt"
    with vgpu.plugged_in(4):
        losses = train("ch2_before", [*STEPS, f"--checkpoint={file}"], "vgpu:0")
        moved = {event.target for event in vgpu.events() if event.source}
        state = torch.load(file, "cpu", weights_only=True)
    assert moved == {"cpu", *(f"vgpu:{i}" for i in range(4))}, "it did not run on all"
    return losses, state


@pytest.mark.parametrize("world_size", [2, 3])
def test_ddp_follows_data_parallel(world_size, before, tmp_path):
    """DDP gives the same losses and checkpoint, though ranks begin differently."""
    flags = [*STEPS, f"--checkpoint={tmp_path / 'ch2.pt'}"]
    with Ranks(world_size) as ranks:
        by_rank = ranks.run(train, "ch2_after", flags, spread=0.1, quiet=True)
    losses, state = before
    after = torch.stack(by_rank).mean(dim=0)
    assert len(after) == 2 * 2
    torch.testing.assert_close(after, losses, rtol=0, atol=1e-10)
    saved = torch.load(tmp_path / "ch2.pt", weights_only=True)
    torch.testing.assert_close(saved, state, rtol=0, atol=1e-10)
    ch2_before.make_task(1)[2].double().load_state_dict(saved)  # the plain model's keys


def test_without_a_gpu_data_parallel_changes_nothing(before, tmp_path):
    """Without a GPU, DataParallel gives the same losses as on four virtual GPUs."""
    if torch.accelerator.is_available():
        pytest.skip("there is a GPU")
    alone = train("ch2_before", [*STEPS, f"--checkpoint={tmp_path / 'ch2.pt'}"])
    torch.testing.assert_close(alone, before[0], rtol=0, atol=1e-10)


def refusal(flags):
    """Return what the script says on a live rank when it exits."""
    import torch

    from scripts import ch2_after

    try:
        ch2_after.train(ch2_after.parse_args(flags), torch.device("cpu"))
    except SystemExit as exit:
        return str(exit)


def test_ranks_refuse_a_batch_that_they_cannot_share(tmp_path):
    """All ranks refuse in one sentence, before anything is trained or written."""
    file = tmp_path / "ch2.pt"
    flags = "--batch-size=25", f"--checkpoint={file}"
    with Ranks(2) as ranks:
        said = ranks.run(refusal, flags, quiet=True)
    assert said == ["--batch-size 25: 2 ranks cannot share it"] * 2
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("script", [ch2_before, ch2_after])
def test_a_refusal(script):
    """A bad value is refused in one sentence that names it."""
    why = f"--checkpoint no/x: No such file or directory: {WAY_OUT}"
    with pytest.raises(SystemExit, match=f"^{re.escape(why)}$"):
        script.parse_args(["--checkpoint=no/x"])


def test_after_needs_torchrun(monkeypatch, tmp_path):
    """Started with plain python, the script says how to start it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(sys, "argv", [ch2_after.__file__])
    with pytest.raises(SystemExit, match="torchrun --standalone --nproc-per-node 2"):
        runpy.run_path(ch2_after.__file__, run_name="__main__")
