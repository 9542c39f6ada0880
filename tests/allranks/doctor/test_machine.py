"""Cores, memory, files and the clock are judged, within a container's limits too."""

import os
import re
import time
from types import SimpleNamespace

import pytest

from tests.allranks.doctor.asking import look, status


def test_limits_of_a_cgroup_of_version_2(files, monkeypatch):
    """Any level above the process may set a limit."""
    group = "/sys/fs/cgroup/job/step"
    files(
        {
            "/proc/self/cgroup": "0::/job/step",
            f"{group}/memory.max": "max",
            "/sys/fs/cgroup/job/memory.max": str(2**30),
            f"{group}/cpu.max": "150000 100000",
            "/proc/meminfo": "MemTotal: 9\nMemAvailable:   99999999 kB",
        },
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert "the container's limit is 1.0 GiB" in look("memory")["memory"][1]
    assert look("cores")["cores"][1].startswith("1 of ")


def test_limits_of_a_cgroup_of_version_1(files):
    """Version 1 has a tree of its own for each resource."""
    path = "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes"
    texts = {"/proc/self/cgroup": "4:memory:/docker\n3:cpu:/x", path: str(2**29)}
    files(texts)
    cpu = "/sys/fs/cgroup/cpu/x/cpu.cfs_"
    texts |= {f"{cpu}quota_us": "100000", f"{cpu}period_us": "100000"}
    assert look("cores")["cores"][1].startswith("1 of ")
    status, found, _ = look("memory")["memory"]
    assert status == "warn" and "limit is 0.5 GiB: below 1 GiB per rank" in found


@pytest.mark.parametrize("value", ["0", "-2", "four", "1000000", "²"])
def test_impossible_numbers_of_threads(value, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    status, _, fix = look("cores")["cores"]
    assert status == "warn" and re.fullmatch(r"export OMP_NUM_THREADS=[1-9]\d*", fix)


def test_fewer_than_two_cores_for_a_gpu(machine, monkeypatch):
    machine("h100_node")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(15)))
    assert status("cores") == "warn"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert status("cores") == "ok"


def test_small_shared_memory_few_files_and_a_wrong_clock(monkeypatch):
    import resource

    disk = SimpleNamespace(f_frsize=4096, f_blocks=2**14, f_bavail=2**14)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)  # Docker's 64 MB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 10**6))
    monkeypatch.setattr(time, "time", lambda: 0)
    found = look("shm", "files", "clock")
    assert [result[0] for result in found.values()] == ["warn"] * 3
    assert "--ipc=host" in found["shm"][2] and found["files"][2] == "ulimit -n 65536"
