"""When the laptop's memory ends before a GPU's, the report says so."""

import re
import signal

import pytest

from allranks.rehearse import host_memory
from allranks.rehearse.__main__ import main
from allranks.rehearse.records import Failure, Record
from tests.allranks.rehearse.running import SCRIPTS, rehearse, sentences


def test_a_tensor_that_the_laptop_cannot_hold_is_no_fault_of_the_gpu():
    """torch's own error stays, and the way out stands beside it."""
    code, out, err = rehearse("--gpus=1", str(SCRIPTS / "large.py"))
    assert code == 1, out + err
    out = sentences(out)
    assert re.search(r"large\.py:\d+: RuntimeError: .*DefaultCPUAllocator", out), out
    assert f"this machine's memory is full, not a GPU's: {host_memory.CURE}" in out


def test_the_report_begins_with_what_linux_has_ended(monkeypatch, capsys):
    """A process that is killed can say nothing itself."""
    counts = iter([3, 4])
    monkeypatch.setattr(host_memory, "num_killed", lambda: next(counts))
    assert main(["--gpus=1", str(SCRIPTS / "killed.py")]) == 128 + signal.SIGKILL
    said = sentences(capsys.readouterr().out)
    assert re.search(r"Rehearsal: exit code 137 after .* s; .* Linux ended 1", said)


def test_kills_are_counted(tmp_path):
    """Linux has one line of many for them."""
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 17\noom_kill 5\n", "utf8")
    assert host_memory.num_killed(counters) == 5


@pytest.mark.parametrize(
    ("ended", "error", "said"),
    [(True, None, 0), (False, Failure("", "own"), 0), (False, None, 1)],
)
def test_a_kill_of_somebody_else_is_not_told(ended, error, said):
    """Whoever was killed did not end by itself, and could not tell why."""
    records = [Record(error=Failure("", "own")), Record(ended=ended, error=error)]
    told = host_memory.explain(2, records)
    assert ("Linux ended 2 of its processes" in told) == bool(said)


def test_a_system_that_counts_none_tells_none(tmp_path):
    """macOS has no such file."""
    assert host_memory.num_killed(tmp_path / "vmstat") == 0
