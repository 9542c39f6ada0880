"""Play an item in a process of its own, which ends in time and leaves nothing."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from allranks.base.paths import ROOT

GRACE_S = 40.0  # torchrun gives its ranks 30 s to end before it kills them
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
_LAUNCHER = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/", re.MULTILINE)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (None: stopped), its output, its seconds."""

    code: int | None
    text: str
    seconds: float

    @property
    def last(self) -> str:
        """Return the last line with words, for a launch the last one of the ranks."""
        ranks = _LAUNCHER.split(self.text, maxsplit=1)[0]
        text = ranks if ranks.strip() else self.text
        lines = [line.strip() for line in text.splitlines() if line.strip(" -=")]
        return lines[-1][:300] if lines else ""


def by_exit_code(ended: Ended) -> tuple[str, dict]:
    """Judge a command that only has to succeed."""
    return (PASSED if ended.code == 0 else FAILED), {"last": ended.last}


@dataclass(frozen=True)
class Item:
    """A command to be played, and how to judge it.

    Attributes:
        needs: the number of GPUs that it needs.
        command: the arguments of a process; none if ``why`` says why it isn't played.
        judge: returns the outcome, and facts about it, from how the command ended.
    """

    group: str
    name: str
    needs: int = 1
    command: tuple[str, ...] = ()
    why: str = ""
    timeout_s: float = 300.0
    judge: Callable[[Ended], tuple[str, dict]] = field(default=by_exit_code)


def play(item: Item, num_gpus: int, env: dict[str, str] | None = None) -> dict:
    """Return the record of an item: its outcome, and the reason unless it passed."""
    record = {"group": item.group, "name": item.name}
    why = item.why
    if not why and item.needs > num_gpus:
        why = f"needs {item.needs} GPUs, and there {'is 1' if num_gpus == 1 else 'are'}"
        why += "" if num_gpus == 1 else f" {num_gpus}"
    if why:
        return record | {"outcome": NOT_RUN, "why": why}
    with tempfile.TemporaryDirectory(prefix="allranks-gpu-") as folder:
        try:
            ended = run(item.command, folder, item.timeout_s, env)
        except OSError as error:  # the program does not exist, or the machine is full
            why = f"it could not be started: {error}"
            return record | {"outcome": FAILED, "why": why}
    record["seconds"] = round(ended.seconds, 1)
    if ended.code is None:
        why = f"stopped after {item.timeout_s:g} s; its last line: {ended.last}"
        return record | {"outcome": FAILED, "why": why}
    outcome, facts = item.judge(ended)
    if outcome == FAILED and "why" not in facts:
        facts = {"why": f"exit code {ended.code}: {ended.last}"} | facts
    return record | {"outcome": outcome} | facts


def run(command, folder: str, timeout_s: float, env=None) -> Ended:
    """Run a command in a folder; end it and its children after ``timeout_s``."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    given = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    given |= {"PYTHONUNBUFFERED": "1", "GROUP_TIMEOUT_S": "60"} | (env or {})
    start, out = time.monotonic(), Path(folder, "output.txt")
    with out.open("wb") as file:  # not a pipe, which a lost child could hold open
        process = subprocess.Popen(
            [*command],
            cwd=folder,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    text = out.read_bytes().decode("utf8", "replace")
    return Ended(code, text, time.monotonic() - start)


def end(process: subprocess.Popen) -> None:
    """End a process and its children; SIGTERM first, so torchrun can end its ranks."""
    if process.poll() is not None:
        return
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in below:
        if child.is_running():
            child.kill()
