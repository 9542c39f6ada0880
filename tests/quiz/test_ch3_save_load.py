"""What backs the quizzes of chapter 3."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from allranks import vgpu
from tests.quiz.proofs import hang, law


def test_ch3_strict():
    """With strict=False nothing is loaded, but a wrong shape is still an error."""
    wrapped = nn.DataParallel(nn.Linear(2, 1)).state_dict()
    net = nn.Linear(2, 1)
    before = net.weight.clone()
    answer = net.load_state_dict(wrapped, strict=False)
    assert answer.missing_keys == ["weight", "bias"]
    assert torch.equal(net.weight, before)
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(3, 1).load_state_dict(net.state_dict(), strict=False)


@law
def test_ch3_next_epoch(last, total):
    done = list(range(last + 1))
    return next(
        s for s in range(total) if done + list(range(s, total)) == [*range(total)]
    )


def test_ch3_barrier(two, tmp_path):
    """After the barrier all read the new file; inside the if, it hangs rank 0."""

    def save(folder, inside):
        import os
        import time

        path = Path(folder, "checkpoint")
        path.write_text("old")
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(0.2)
            Path(folder, "new").write_text("new")
            os.replace(Path(folder, "new"), path)
            if inside:
                dist.barrier()
        if not inside:
            dist.barrier()
        return path.read_text()

    assert two.run(save, str(tmp_path), False, timeout=30) == ["new", "new"]
    with hang(two, match="rank 1 finished"):
        two.run(save, str(tmp_path), True, timeout=60)


class Trap:
    """An object whose pickle is a call of os.mkdir."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        """Return the call that unpickling makes."""
        return os.mkdir, (self.path,)


def test_ch3_unpickling(tmp_path):
    """The check refuses the call; without it the call runs, map_location or not."""
    file, sign = tmp_path / "model.pt", tmp_path / "ran"
    torch.save(Trap(str(sign)), file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file)
    assert not sign.exists()
    torch.load(file, weights_only=False, map_location="cpu")
    assert sign.exists()


def test_ch3_map_location():
    """A tensor loads onto the device that the file names, not onto the default one."""
    with vgpu.plugged_in(2):
        file = io.BytesIO()
        torch.save(torch.ones(1, device="vgpu:0"), file)
        file.seek(0)
        with torch.device("vgpu:1"):
            assert str(torch.load(file).device) == "vgpu:0"
        file.seek(0)
        assert str(torch.load(file, map_location="cpu").device) == "cpu"
