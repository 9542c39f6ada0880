"""Fixtures that show the doctor other GPUs, another torch, or other files."""

import os
import re
from types import SimpleNamespace

import pytest
import torch

from allranks.doctor import facts, nvidia_smi, wheels
from allranks.doctor.checks.network import LAUNCH
from tests.allranks.doctor.asking import CALM, MACHINES


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """Hide each variable that a check reads, and each answer that was cached."""
    for name in set(os.environ) - CALM:
        if re.match("CUDA|OMP|SLURM|OMPI|NCCL|GLOO|TORCHELASTIC", name):
            monkeypatch.delenv(name)
    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)
    forget = nvidia_smi.survey.cache_clear, facts.addresses.cache_clear
    for clear in forget:
        clear()
    yield
    for clear in forget:
        clear()


@pytest.fixture
def machine(monkeypatch):
    """Return a function: ``machine("mig")`` puts a stand-in nvidia-smi on the PATH."""

    def become(name):
        monkeypatch.setenv("SMI_MACHINE", name)
        monkeypatch.setenv("PATH", f"{MACHINES}{os.pathsep}{os.environ['PATH']}")
        nvidia_smi.survey.cache_clear()

    return become


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Return a function: ``says("row", code=14)`` writes an nvidia-smi like this."""

    def become(*rows, code=0, after=""):
        header = nvidia_smi.FIELDS.replace(",", ", ")
        lines = [f"echo '{line}'" for line in (header, *rows)]
        if not rows:
            lines = []
        text = "\n".join(["#!/bin/bash", *lines, after, f"exit {code}\n"])
        (tmp_path / "nvidia-smi").write_bytes(text.encode("latin1"))
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        nvidia_smi.survey.cache_clear()

    return become


@pytest.fixture
def fake_cuda(monkeypatch):
    """Return a function: ``fake_cuda("13.0", ...)`` gives the doctor another torch."""

    def become(wheel="13.0", available=True, devices=4, capability=(9, 0), **more):
        cuda = SimpleNamespace(
            is_available=lambda: available,
            is_initialized=lambda: False,
            device_count=lambda: devices if available else 0,
            get_device_capability=lambda i: capability,
            get_arch_list=lambda: ["sm_75", "sm_80", "sm_90", "compute_90"],
            can_device_access_peer=lambda i, j: True,
            nccl=SimpleNamespace(version=lambda: (2, 27, 5)),
        )
        vars(cuda).update(more)
        cudnn = SimpleNamespace(is_available=lambda: True, version=lambda: 91002)
        fake = SimpleNamespace(
            __version__="2.13.0+cu130",
            cuda=cuda,
            version=SimpleNamespace(cuda=wheel, hip=None),
            backends=SimpleNamespace(cudnn=cudnn),
            distributed=SimpleNamespace(
                is_nccl_available=lambda: True,
                get_default_backend_for_device=lambda kind: "nccl",
            ),
            accelerator=SimpleNamespace(
                current_accelerator=lambda: torch.device("cuda"),
                is_available=lambda: available,
                device_count=lambda: devices,
            ),
        )
        monkeypatch.setattr(wheels, "load", lambda: (fake, None))
        return fake

    return become


@pytest.fixture
def files(monkeypatch):
    """Return a function: ``files({path: text})`` lets the doctor read only these."""

    def become(texts):
        read = texts.get
        monkeypatch.setattr(facts, "text_of", lambda path: read(str(path), ""))

    return become
