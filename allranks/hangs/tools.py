"""The tools that look at a hang: how to ask each of them, and where it is no use.

There are two kinds: some wait for a timeout and raise (``message``), and the others are
asked when no rank makes progress any more.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allranks.hangs import attach, flight
from allranks.live.processes import RankProcesses

TIMEOUT_S = 1.0  # for every tool that waits for a timeout
NO_GROUP = "no group yet: the processes have not met"
COMMAND = "torchrun's process waits, and nothing of your own runs in it"
MESSAGE, STACKS, DUMPS, REPORT = "message", "stacks", "dumps", "report"


@dataclass(frozen=True)
class Tool:
    """One way to look at a hang.

    Attributes:
        title: its name in the table.
        says: what it prints: MESSAGE, STACKS, DUMPS or REPORT.
        attach: runs on each rank, in the process of the code that hangs, before it.
        args: the arguments of ``attach``.
        ask: called when no rank makes progress; returns what each rank answers.
        needs: ``"group"``, ``"script"`` (code of your own in the process) or nothing.
    """

    title: str
    says: str
    attach: Callable | None = None
    args: tuple = ()
    ask: Callable | None = None
    needs: str = ""

    def excuse(self, meets: bool, command: bool) -> str:
        """Say why it cannot be attached; "" if it can.

        Args:
            meets: whether the processes hang before there is a group.
            command: whether a command hangs, not a cell.
        """
        if meets and self.needs == "group":
            return NO_GROUP
        return COMMAND if command and self.needs else ""


def ask_fault_handler(crew: RankProcesses, place: Path) -> dict[int, str]:
    """Send each rank the signal, and read the stacks that the ranks write."""
    for process in crew.processes:
        os.kill(process.pid, signal.SIGUSR2)
    stacks, deadline = {}, time.monotonic() + 5
    for rank, process in enumerate(crew.processes):
        file = place / f"stack{process.pid}"
        while time.monotonic() < deadline and " in serve\n" not in file.read_text():
            time.sleep(0.01)
        stacks[rank] = file.read_text()
    return stacks


def ask_py_spy(crew: RankProcesses, place: Path) -> dict[int, str]:
    """Read the stack of each process from outside, with py-spy.

    Raises:
        PermissionError: if this machine does not allow it.
        FileNotFoundError: if py-spy is not installed.
    """
    command = [find_py_spy(), "dump", "--full-filenames", "--pid"]
    pids = [str(process.pid) for process in crew.processes]
    ends = [subprocess.run([*command, p], capture_output=True, text=True) for p in pids]
    for end in ends:
        if end.returncode:
            raise PermissionError(f"py-spy: {end.stderr.strip()}")
    return {rank: end.stdout for rank, end in enumerate(ends)}


def ask_flight_recorder(crew: RankProcesses, place: Path) -> dict[int, dict]:
    """Make all ranks dump their flight recorders, and read the dumps."""
    (place / "asked").touch()
    deadline, folder = time.monotonic() + 5, place / "dumps"
    while time.monotonic() < deadline:
        if len(list(folder.glob(f"{flight.PREFIX}*"))) == len(crew.processes):
            break
        time.sleep(0.02)
    return flight.read(folder)


def find_py_spy() -> str:
    """Return the path of py-spy.

    Raises:
        FileNotFoundError: if it is not installed.
    """
    beside = Path(sys.executable).with_name("py-spy")
    path = str(beside) if beside.exists() else shutil.which("py-spy")
    if path is None:
        raise FileNotFoundError("py-spy is not installed: pip install py-spy==0.4.3")
    return path


TOOLS = {
    "timeout": Tool("timeout", MESSAGE, attach.limit_groups, (TIMEOUT_S,)),
    "monitored_barrier": Tool(
        "`monitored_barrier`", MESSAGE, attach.monitor, (TIMEOUT_S,), needs="group"
    ),
    "detail": Tool(
        "`DETAIL`", MESSAGE, attach.limit_groups, (TIMEOUT_S, True), needs="group"
    ),
    "flight_recorder": Tool(
        "flight recorder",
        DUMPS,
        attach.wait_to_dump,
        ask=ask_flight_recorder,
        needs="group",
    ),
    "py_spy": Tool("py-spy", STACKS, ask=ask_py_spy),
    "faulthandler": Tool(
        "`faulthandler`",
        STACKS,
        attach.register_fault_handler,
        ask=ask_fault_handler,
        needs="script",
    ),
    "live_ranks": Tool("live ranks", REPORT, needs="script"),
}
