"""Checks of GPUs: their driver, their use, their links, and what a mask leaves."""

import pytest
import torch

from allranks.doctor import nvidia_smi
from tests.allranks.doctor.asking import look, status


def test_a_faulty_gpu_is_not_recommended(machine):
    """GPU 1 has errors and GPU 2 is busy, so the advice is 0 and 3."""
    machine("ecc_error")
    found = look("ecc", "busy")
    assert found["ecc"][1].startswith("GPU 1: 2 errors") and "-i 1" in found["ecc"][2]
    assert found["busy"][2] == "CUDA_VISIBLE_DEVICES=0,3 python ..."


def test_split_and_exclusive_gpus_are_both_told(machine):
    machine("mig")
    _, found, fix = look("mode")["mode"]
    assert "GPU 0: mig.mode.current" in found and "GPU 1: compute_mode" in found
    assert fix == "sudo nvidia-smi -i 0 -mig 0; sudo nvidia-smi -i 1 -c DEFAULT"


def test_neighbors_are_advised_only_if_both_are_idle(machine, monkeypatch):
    """A GPU that "busy" calls taken is not recommended by "topology"."""
    machine("titan_x")
    assert look("topology")["topology"][2] == ""
    machine("h100_node")
    matrix = "GPU0 X PIX SYS SYS\nGPU1 PIX X SYS SYS\nGPU2 SYS SYS X PIX\n"
    matrix += "GPU3 SYS SYS PIX X"
    nvidia_smi.survey()[0][1]["processes"] = ["7"]
    monkeypatch.setattr(nvidia_smi, "run", lambda *command: (matrix, 0))
    assert look("topology")["topology"][2].endswith("=2,3")


def test_more_nvlinks_are_nearer(machine, monkeypatch):
    """Among GPUs in a ring, a pair with two links is advised, not the first pair."""
    machine("h100_node")
    matrix = "GPU0 X NV1 NV2 SYS\nGPU1 NV1 X SYS NV2\nGPU2 NV2 SYS X NV1\n"
    pairs = nvidia_smi.links(f"{matrix}GPU3 SYS NV2 NV1 X")
    monkeypatch.setattr(nvidia_smi, "links", lambda text: pairs)
    _, found, fix = look("topology")["topology"]
    assert found == "NV2 0-2 1-3; NV1 0-1 2-3; SYS 0-3 1-2" and fix.endswith("=0,2")


def test_an_old_driver_under_a_new_wheel_fails(machine, fake_cuda):
    machine("titan_x")
    fake_cuda("12.6", available=False)
    result = look("driver", "accelerator")
    assert result["driver"][:2] == ("fail", "390.48; the wheel's CUDA is 12.6: too old")
    assert result["driver"][2] == "update the driver to 525.60.13 or newer"
    assert result["accelerator"][0] == "fail" and "torch.cuda.init" in str(result)
    machine("h100_node")
    assert status("driver") == "ok"


def test_an_old_driver_with_the_compatibility_package_runs(machine, fake_cuda):
    """If CUDA starts, the driver is fine, whatever the table says."""
    machine("titan_x")
    fake_cuda("12.6", available=True)
    assert status("driver") == "ok"


def test_a_cpu_wheel_beside_gpus_fails(machine):
    if torch.version.cuda:
        pytest.skip("this torch is built for CUDA")
    machine("h100_node")
    result, fix = look("accelerator")["accelerator"][1:]
    assert result.startswith("8 GPUs") and "CUDA wheel" in fix
    assert status("driver") == "skip"


def test_gpus_that_torch_can_use_are_joined_by_nccl(fake_cuda):
    """GPUs use NCCL, while on a Mac, where no backend joins them, ranks use the CPU."""
    fake = fake_cuda()
    assert look("accelerator")["accelerator"][1] == "4 x cuda, joined by nccl"

    def none(kind):
        raise ValueError(kind)

    fake.distributed.get_default_backend_for_device = none
    assert look("accelerator")["accelerator"][1].endswith("ranks use the CPU")


@pytest.mark.parametrize("capability", [(9, 0), (10, 3), (7, 5), (7, 0), (6, 1)])
def test_a_wheel_without_code_for_the_gpu_fails(capability, machine, fake_cuda):
    machine("h100_node")
    fake_cuda(capability=capability)
    assert status("capability") == ("ok" if capability >= (7, 5) else "fail")


def test_capability_without_cuda_is_nvidia_smis(machine, fake_cuda):
    """nvidia-smi still knows the capability if the driver fails."""
    machine("h100_node")
    fake_cuda(available=False)
    assert look("capability")["capability"][:2] == ("ok", "9.0")


def test_versions_of_the_wheels_libraries(monkeypatch, fake_cuda):
    """cuDNN's number is read in both its forms; another library folder is a warning."""
    fake = fake_cuda()
    found = look("libraries")["libraries"]
    assert found[0] == "ok" and found[1].startswith("cuDNN 9.10.2, NCCL 2.27.5")
    fake.backends.cudnn.version = lambda: 8902
    assert "cuDNN 8.9.2" in look("libraries")["libraries"][1]
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/x:/usr/local/cuda-11/lib64")
    assert status("libraries") == "warn"


def test_peer_access(fake_cuda):
    """Peer access is checked for every ordered pair."""
    fake_cuda(devices=3)
    assert look("peer")["peer"][:2] == ("ok", "between all 3")
    fake_cuda(devices=3, can_device_access_peer=lambda i, j: (i, j) != (2, 0))
    assert look("peer")["peer"][:2] == ("warn", "none for 1 of 6 pairs: 2-0")
    fake_cuda(devices=1)
    assert status("peer") == "ok"


def test_a_mask_that_comes_too_late(monkeypatch, fake_cuda, files):
    """A mask that is set after CUDA has started has no effect, which is a warning."""
    fake = fake_cuda(is_initialized=lambda: True)
    files({"/proc/self/environ": "A=1\0CUDA_VISIBLE_DEVICES=1\0B=2"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert status("visible") == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found, fix = look("visible")["visible"][1:]
    assert "after CUDA had started" in found
    assert fix == "CUDA_VISIBLE_DEVICES=0,1 python ..."
    fake.cuda.is_initialized = lambda: False
    assert status("visible") == "ok"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("0,3", "ok"), ("0,8", "warn"), ("", "warn"), ("1,1", "warn"), ("MIG-1", "ok")],
)
def test_masks(mask, expected, machine, monkeypatch):
    machine("h100_node")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert status("visible") == expected


def test_gpus_of_two_kinds(machine, monkeypatch):
    """torch may number them differently, and the slow one sets the pace: a warning."""
    machine("h100_node")
    nvidia_smi.survey()[0][5]["name"] = "NVIDIA T4"
    assert look("gpus", "visible")["gpus"][0] == "warn"
    assert look("visible")["visible"][2] == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert status("visible") == "ok"
