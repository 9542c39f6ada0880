"""When the laptop's memory ends before a GPU's, the report says so."""

import re
import signal

import pytest

from allranks.rehearse import host_memory
from allranks.rehearse.__main__ import main
from tests.allranks.rehearse.running import SCRIPTS, rehearse


def test_a_tensor_that_the_laptop_cannot_hold_is_no_fault_of_the_gpu():
    """torch's own error stays, and the way out stands beside it."""
    code, out, err = rehearse("--gpus=1", str(SCRIPTS / "large.py"))
    assert code == 1, out + err
    assert re.search(r"large\.py:\d+: RuntimeError: .*DefaultCPUAllocator", out), out
    assert f"not a GPU's memory is full but this machine's: {host_memory.CURE}" in out


def test_the_report_begins_with_what_linux_has_ended(monkeypatch, capsys):
    """A process that is killed can say nothing itself."""
    counts = iter([3, 4])
    monkeypatch.setattr(host_memory, "num_killed", lambda: next(counts))
    assert main(["--gpus=1", str(SCRIPTS / "killed.py")]) == 128 + signal.SIGKILL
    said = capsys.readouterr().out
    assert re.search(r"Rehearsal: exit code 137 after .* s; .* Linux ended 1", said)


@pytest.mark.parametrize(("before", "after", "num"), [(3, 3, 0), (3, 5, 2)])
def test_kills_of_linux_are_counted(before, after, num, tmp_path):
    """Only those that happen while the script runs are told."""
    counters = tmp_path / "vmstat"
    counts = []
    for so_far in before, after:
        counters.write_text(f"pgfault 17\noom_kill {so_far}\n", "utf8")
        counts.append(host_memory.num_killed(counters))
    said = host_memory.told(counts[1] - counts[0])
    assert said == "" if num == 0 else f"Linux ended {num} of its processes" in said


def test_a_system_that_counts_none_tells_none(tmp_path):
    """macOS has no such file."""
    assert host_memory.num_killed(tmp_path / "vmstat") == 0
