"""Two ranks add, or one line says why they can't, and their processes are gone."""

import os
import sys
import tempfile

import psutil
import pytest
import torch.distributed as dist

from allranks.doctor.checks import ranks
from tests.allranks.doctor.asking import look, status

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="its ranks are forked")


def children():
    return psutil.Process().children(recursive=True)


@LINUX
def test_two_ranks_fail_with_a_reason(monkeypatch):
    """A wrong interface, a wrong sum and a dead rank give a line each; none is left."""
    before = children()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch")
    status, found, fix = look("all_reduce")["all_reduce"]
    assert status == "fail" and "nosuch" in found and "GLOO_SOCKET_IFNAME=lo" in fix
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.add_(1))
    status, found, _ = look("all_reduce")["all_reduce"]
    assert status == "fail" and found == "AssertionError: 1 + 2 = [2.0]"
    monkeypatch.setattr(ranks, "WAIT_S", 1)
    monkeypatch.setattr(dist, "all_reduce", lambda x: os._exit(1))
    status, found, _ = look("all_reduce")["all_reduce"]
    assert status == "fail" and found == "TimeoutError: no answer"
    assert children() == before


@LINUX
def test_no_folder_for_temporary_files(monkeypatch):
    """The advice is about a folder, not about a network interface."""

    def none(*args):
        raise FileNotFoundError("[Errno 2] No usable temporary directory found in []")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", none)
    status, _, fix = look("all_reduce")["all_reduce"]
    assert status == "fail" and fix.startswith("TMPDIR=")


@pytest.fixture
def tried(monkeypatch):
    """Return a list of the arguments of each attempt; no attempt is really made."""
    made = []
    answer = "ok", "not tried"
    monkeypatch.setattr(ranks, "all_reduce", lambda *a: (made.append(a), answer)[1])
    return made


@LINUX
def test_ranks_are_forked_only_while_cuda_has_not_started(fake_cuda, tried):
    """A forked rank would inherit a CUDA that it cannot use."""
    for started in False, True:
        fake_cuda(is_initialized=lambda started=started: started)
        assert status("all_reduce") == "ok"
    assert [how[:2] for how in tried] == [("gloo", "fork"), ("gloo", "spawn")]


def test_nccl_is_tried_on_two_gpus_in_fresh_processes(fake_cuda, tried):
    """NCCL is tried with two GPUs, and not with one."""
    fake_cuda(devices=2)
    assert status("nccl") == "ok" and tried[0][:2] == ("nccl", "spawn")
    fake_cuda(devices=1)
    assert status("nccl") == "ok" and len(tried) == 1
