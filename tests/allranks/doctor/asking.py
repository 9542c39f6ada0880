"""Helpers that ask the doctor, in this process or as a user would start it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allranks.base.paths import ROOT
from allranks.doctor import examine

MACHINES = Path(__file__).parent / "machines"
CALM = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT"}
QUICK = str(ROOT / "tests" / "start")  # makes the import of torch faster
DOCTOR = "-m", "allranks.doctor"  # start() runs in the folder where it is found
BARE = "-S", "-E"  # a Python that finds no installed package


def look(*names: str) -> dict[str, tuple[str, str, str]]:
    """Return {name: (status, found, fix)} of a few checks."""
    facts = [examine(name) for name in names]
    return {f["name"]: (f["status"], f["found"], f["fix"]) for f in facts}


def status(name: str) -> str:
    """Return the status of one check."""
    return look(name)[name][0]


def start(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run Python as a user does, in a session of its own; no process may be left."""
    env = {name: value for name, value in os.environ.items() if name in CALM}
    env |= {"SMI_MACHINE": os.environ.get("SMI_MACHINE", "")} | variables
    paths = [variables.get("PYTHONPATH", ""), QUICK]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        with pytest.raises(ProcessLookupError):  # no process of the session is left
            for _ in range(100):  # the tracker of spawned ranks ends later
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err
