"""Whatever a check does, it becomes a line of the report."""

import threading

from allranks.doctor import running, wheels
from allranks.doctor.registry import CHECKS, Check
from tests.allranks.doctor.asking import look


def test_a_check_that_breaks_or_hangs_is_a_line(monkeypatch):
    """Any exception becomes a line, and a check that hangs is left behind."""

    def leave():
        raise SystemExit("boom\nand more")

    wait = threading.Event().wait
    found = {"breaks": (leave, 60), "hangs": (lambda: wait(30), 0.1)}
    for name, (answer, seconds) in found.items():
        one = Check(answer, "Why.", (), seconds, loads_torch=False)
        monkeypatch.setitem(running.CHECKS, name, one)
    found = look(*found)
    assert found["breaks"][:2] == ("warn", "this check broke: SystemExit: boom")
    assert found["hangs"][:2] == ("warn", "no answer in 0.1 s")


def test_torch_is_imported_before_the_checks_time_runs_and_only_if_asked(monkeypatch):
    """The import takes none of a check's time, and happens only if it needs torch."""
    loaded = []
    monkeypatch.setattr(
        wheels, "load", lambda: (loaded.append(1), (None, OSError()))[1]
    )
    look("clock", "numpy", "loopback", "gpus")
    assert not loaded
    for name in [name for name in CHECKS if CHECKS[name].loads_torch]:
        monkeypatch.setattr(running.threading.Thread, "start", lambda thread: None)
        monkeypatch.setattr(running.threading.Thread, "join", lambda *of: None)
        before = len(loaded)
        look(name)
        assert len(loaded) == before + 1, name
    assert len(loaded) >= 8
