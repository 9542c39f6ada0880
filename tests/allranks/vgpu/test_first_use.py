"""When CUDA is in use: from the first tensor, copy or choice of a device on."""

import io

import pytest
import torch

from allranks import vgpu


def load(saved: bytes) -> torch.Tensor:
    """Load a tensor that was saved on a GPU."""
    return torch.load(io.BytesIO(saved))


USES = {
    "set_device": lambda saved: torch.cuda.set_device(0),
    "a tensor": lambda saved: torch.ones(256, device="cuda"),
    "to": lambda saved: torch.ones(256).to("cuda"),
    "cuda": lambda saved: torch.ones(256).cuda(),
    "load": lambda saved: load(saved),
}


@pytest.fixture(scope="module")
def saved():
    """Return the bytes of a tensor that was saved on a GPU."""
    file = io.BytesIO()
    with vgpu.plugged_in(1, kind="cuda"):
        torch.save(torch.ones(256, device="cuda"), file)
    return file.getvalue()


@pytest.mark.parametrize("use", USES)
def test_each_first_use_reads_the_visible_devices_and_is_counted(
    use, saved, monkeypatch
):
    """Memory is counted, and CUDA_VISIBLE_DEVICES obeyed, whatever comes first.

    Fake tensors and DeviceMesh ask whether CUDA is in use, and for the device if so.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with vgpu.plugged_in(2, kind="cuda") as machine:
        assert not torch.cuda.is_initialized()
        kept = USES[use](saved)
        assert torch.cuda.is_initialized()
        assert [device.physical for device in machine.devices] == [1]
        if kept is not None:
            assert torch.cuda.memory_allocated() == kept.nbytes


def test_the_question_whether_there_is_a_gpu_reads_the_visible_devices(monkeypatch):
    """CUDA's runtime answers it; how many there are, torch asks NVML, each time."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with vgpu.plugged_in(3, kind="cuda") as machine:
        assert torch.cuda.device_count() == 1
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
        assert torch.cuda.device_count() == 2 and torch.cuda.is_available()
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        torch.ones(1, device="cuda")
        assert [device.peak > 0 for device in machine.built] == [False, False, True]
