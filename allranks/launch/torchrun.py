"""Run a script under torchrun, read what its ranks wrote, leave no process behind."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.base.paths import ROOT
from allranks.base.report import need_unix
from allranks.launch.logs import Launch, LaunchError, explain, read
from allranks.launch.status import Status

if TYPE_CHECKING:
    import psutil

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def launch(
    script: str | Path,
    nproc_per_node: int | Sequence[int] = 1,
    *args: str,
    nnodes: int = 1,
    timeout: float = 120.0,
    check: bool = True,
    env: dict[str, str] | None = None,
) -> Launch:
    """Run a script under torchrun, on this machine, and wait until it ends.

    Args:
        script: the stem of a file in ``scripts/``, such as ``"ch5_ddp"``, or a path.
        nproc_per_node: ranks per node; a list if the nodes differ.
        *args: the script's own arguments.
        nnodes: how many nodes to play, each by a torchrun of its own.
        timeout: seconds until every process of the launch is ended.
        check: raise if a rank fails; otherwise look at ``exit_code``.
        env: environment variables to add.

    Raises:
        LaunchError: if a rank failed (with ``check``), or the time is up.
        ValueError: if there is no such script, or the number of ranks is impossible.
        RuntimeError: on Windows.
    """
    need_unix("launch")
    path, counts = _find(script), _counts(nproc_per_node, nnodes)
    environ = _environment(timeout, env)
    status = Status(f"{path.name} runs on {sum(counts)} ranks")
    with tempfile.TemporaryDirectory(prefix="allranks-") as folder, status:
        logs = [Path(folder, str(node)) for node in range(len(counts))]
        where = _rendezvous(len(counts))
        agents = []
        try:
            # One torchrun per node, as on a cluster, but all of them on this machine.
            for node, (count, log) in enumerate(zip(counts, logs, strict=True)):
                flags = [
                    *where,
                    "--node-rank",
                    str(node),
                    "--nproc-per-node",
                    str(count),
                ]
                agents.append(_start(flags, path, args, log, environ))
            timed_out = not _wait(agents, timeout)
            if timed_out:
                # Before the processes are ended: their stacks say where each rank
                # waits.
                _dump_stacks(agents)
        finally:
            # Also after Ctrl-C: a torchrun that is left alone keeps its ranks running.
            stop(agents)
        result, exit_codes = read(logs, counts, [a.returncode for a in agents])
    if timed_out or (check and result.exit_code):
        limit = timeout if timed_out else None
        raise LaunchError(explain(path.stem, result, exit_codes, limit), result)
    return result


def _find(script: str | Path) -> Path:
    path = Path(script)
    if path.suffix != ".py":
        path = ROOT / "scripts" / f"{script}.py"
    if not path.is_file():
        known = ", ".join(
            sorted(p.stem for p in (ROOT / "scripts").glob("ch[0-9]*.py"))
        )
        raise ValueError(f"there is no script {str(script)!r}; scripts/ has {known}")
    return path


def _counts(nproc_per_node: int | Sequence[int], nnodes: int) -> list[int]:
    """Return the number of ranks on each node."""
    if isinstance(nproc_per_node, int):
        counts = [nproc_per_node] * nnodes
    else:
        counts = list(nproc_per_node)
    if not counts or min(counts) < 1:
        raise ValueError(
            f"{nproc_per_node} ranks on each of {nnodes} nodes: both must be at least 1"
        )
    return counts


def _rendezvous(nnodes: int) -> list[str]:
    """Return the flags by which the agents find each other."""
    if nnodes == 1:
        return ["--standalone"]
    flags = ["--nnodes", str(nnodes), "--master-addr", "127.0.0.1"]
    return [*flags, "--master-port", str(free_port())]


def free_port() -> int:
    """Find a port outside the range from which the system serves connections."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _environment(timeout: float, extra: dict[str, str] | None) -> dict[str, str]:
    safe = {
        "OMP_NUM_THREADS": "1",  # else each of W ranks starts a thread on every core
        "GROUP_TIMEOUT_S": f"{max(1, timeout - 10):g}",  # a collective fails before us
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # torch 2.13: restarts fail without
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "PYTHONFAULTHANDLER": "1",  # a rank that is aborted writes where it stood
    }
    return {**os.environ, **safe, **(extra or {})}


def _start(
    flags: list[str],
    path: Path,
    args: Sequence[str],
    log: Path,
    environ: dict[str, str],
) -> subprocess.Popen:
    """Start one node's torchrun, which writes to files in the folder ``log``."""
    log.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", *flags]
    command += ["--redirects", "3", "--log-dir", str(log), str(path), *args]
    with open(log / "torchrun", "wb") as own_output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=own_output,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,  # a Ctrl-C reaches us alone, and we end the ranks
            preexec_fn=end_with_parent if _LIBC else None,
        )


def end_with_parent() -> None:
    """Make Linux send torchrun a SIGTERM when we die, so that it ends its ranks."""
    _LIBC.prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG


def _wait(agents: list[subprocess.Popen], timeout: float) -> bool:
    """Wait until all agents ended, or one failed and the rest had time to notice.

    Returns:
        False if the time was up before either.
    """
    deadline, failed = time.monotonic() + timeout, False
    while any(agent.poll() is None for agent in agents):
        if time.monotonic() > deadline:
            return failed
        if not failed and any(agent.poll() not in (None, 0) for agent in agents):
            failed, deadline = True, min(deadline, time.monotonic() + 10)
        time.sleep(0.02)
    return True


def _dump_stacks(agents: list[subprocess.Popen]) -> None:
    """Abort the ranks of a launch that hangs, so that each writes where it stands."""
    for process in _descendants(agents):
        _signal(process, signal.SIGABRT)
    deadline = time.monotonic() + 5
    while any(a.poll() is None for a in agents) and time.monotonic() < deadline:
        time.sleep(0.02)


def stop(agents: list[subprocess.Popen]) -> None:
    """End every agent with SIGTERM, which also ends its ranks; then make sure of it."""
    ranks = _descendants(agents)
    try:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(10)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        for process in ranks:
            _signal(process, signal.SIGKILL)


def _descendants(agents: list[subprocess.Popen]) -> "list[psutil.Process]":
    """List every process below the agents.

    They are psutil's, which notice if a process id has been reused in the meantime.
    """
    import psutil  # here, because ``import allranks`` needs the standard library only

    found = []
    for agent in agents:
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(agent.pid).children(recursive=True)
    return found


def _signal(process: "psutil.Process", number: int) -> None:
    """Send a signal, unless the process has ended in the meantime."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process.send_signal(number)
