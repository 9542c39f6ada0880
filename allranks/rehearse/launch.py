"""Starts the reader's command on each node, and sees to it that everything ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil
from torch.distributed import TCPStore

from allranks.launch.torchrun import end_with_parent, stop
from allranks.rehearse.command import rewrite, variables
from allranks.rehearse.records import VARIABLE, Stage
from allranks.vgpu.cuda.functions import visible


def run(
    stage: Stage,
    words: Sequence[str],
    timeout_s: float | None = None,
    path: str = "",
) -> tuple[int, str]:
    """Run a command on the stage until it ends, and leave no process behind.

    Args:
        stage: the rehearsal.
        words: the reader's command, with variables before it if the reader has any.
        timeout_s: seconds after which it is ended; None waits as long as it takes.
        path: a folder that comes first in PATH.

    Returns:
        The exit code, and how it ended, as a sentence.

    Raises:
        CommandError: if the command cannot be rehearsed.
    """
    begin, jobs, stopped = time.monotonic(), [], ""
    store = _meeting_point() if stage.nodes > 1 else None
    place = _place(stage.nodes, store.port) if store else ()
    env, words = variables(words)
    env = _environment(stage, env, path)
    gpus = visible(stage.gpus, env.get("CUDA_VISIBLE_DEVICES"))
    command = rewrite(words, place, len(gpus))
    with _hearing_sigterm():
        try:
            for _ in range(stage.nodes):  # each has a torchrun of its own
                job = subprocess.Popen(
                    command,
                    env=env,
                    # A Ctrl-C reaches us alone, and we end the rest.
                    start_new_session=True,
                    preexec_fn=end_with_parent if sys.platform == "linux" else None,
                )
                jobs.append(job)
            code = _wait(jobs, begin, timeout_s)
        except subprocess.TimeoutExpired:
            code, stopped = 124, f"ended after --timeout {timeout_s:g} s"
        except Terminated:
            code, stopped = 143, "stopped by SIGTERM"
        except KeyboardInterrupt:
            code, stopped = 130, "stopped by Ctrl-C"
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # a second one only hastens it
                stop(jobs)
            _clear(stage, jobs)
    took = f"{time.monotonic() - begin:.1f} s"
    return code, stopped or f"exit code {code} after {took}"


def _environment(stage: Stage, own: dict[str, str], path: str) -> dict[str, str]:
    """Return the environment of the command: the shell's, the reader's, and ours."""
    env = dict(os.environ) | own | stage.environment()
    env["PATH"] = os.pathsep.join(filter(None, [path, env.get("PATH", "")]))
    env["PYTHONPATH"] = _python_path(env)
    # Otherwise torchrun leaves a folder torchelastic_* behind, each time.
    env.setdefault("PET_LOG_DIR", os.path.join(stage.folder, "torchrun"))
    return env


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ``timeout`` and a CI that cancels a job send."""


@contextlib.contextmanager
def _hearing_sigterm() -> Iterator[None]:
    """Raise ``Terminated`` for a SIGTERM, which the main thread alone can hear."""

    def terminated(*_: Any) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _clear(stage: Stage, jobs: list[subprocess.Popen]) -> None:
    """End what is left, in the sessions of the nodes or of the script's own.

    The environment of a process says to which rehearsal it belongs.
    """
    for job in jobs:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.pid, signal.SIGKILL)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if stage.folder in process.environ().get(VARIABLE, ""):
                process.kill()


def _meeting_point() -> TCPStore:
    """Serve the store in which the nodes' torchruns meet.

    On a cluster the first node serves it, and if that node's torchrun ends a moment
    before the others have read that all is done, they print a traceback of C++.
    """
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _place(nodes: int, port: int) -> tuple[str, ...]:
    """Return the flags that tell each node's torchrun where the others are."""
    meet = f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-conf=is_host=0"
    return (*meet, f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1")


def _python_path(env: dict[str, str]) -> str:
    """Return a PYTHONPATH on which the children find this package.

    It comes last: once installed, its folder is site-packages, and a module of the
    reader's may have the name of one that is installed.
    """
    here = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, [env.get("PYTHONPATH", ""), here]))


def _wait(jobs: list[subprocess.Popen], begin: float, timeout_s: float | None) -> int:
    """Wait for all nodes; return the first exit code that is not 0.

    The other nodes are not waited for then: they would wait for the one that failed.

    Raises:
        subprocess.TimeoutExpired: if they take too long.
    """
    running = list(jobs)
    while running:
        for job in [j for j in running if j.poll() is not None]:
            running.remove(job)
            if job.returncode:
                return _code(job.returncode)
        if timeout_s is not None and time.monotonic() - begin > timeout_s:
            raise subprocess.TimeoutExpired(jobs[0].args, timeout_s)
        time.sleep(0.02)
    return 0


def _code(returncode: int) -> int:
    """Return an exit code as a shell says it, 128 and the signal's number."""
    return 128 - returncode if returncode < 0 else returncode
