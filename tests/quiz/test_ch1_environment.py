"""What backs the quizzes of chapter 1."""

import datetime

import pytest
import torch.distributed as dist

from allranks.doctor.wheels import driver_runs
from allranks.topics.topology.sums import visible_devices
from tests.quiz.proofs import law

BACKED = {  # by something that can't run here, or that runs elsewhere
    "ch1_utilisation": "needs a GPU; nvidia-smi's manual, as the page says",
    "ch1_too_late": "errata/a3_visible_devices_too_late.py",
}


def test_ch1_stale_variables(monkeypatch):
    """Rank 0 of 2 waits, but a busy port or a missing variable fails at once."""
    short = {"timeout": datetime.timedelta(seconds=1)}
    with pytest.raises(dist.DistStoreError, match="1/2 clients joined"):
        dist.TCPStore("127.0.0.1", 0, 2, is_master=True, **short)
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, **short)
    with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
        dist.TCPStore("127.0.0.1", store.port, 1, is_master=True, **short)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        dist.init_process_group("gloo")


@law
def test_ch1_renumbering(first, second):
    return visible_devices(f"{first},{second}", num_gpus=8)[1]


def test_ch1_three_versions():
    """A driver for CUDA 12.4 runs a wheel for 12.1."""
    assert driver_runs("550.54.14", "12.4")
    assert driver_runs("550.54.14", "12.1")
    assert not driver_runs("550.54.14", "13.0")
