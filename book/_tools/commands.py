"""Run the commands of a page as a reader would, and tidy what they print."""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from allranks import LaunchError, launch
from allranks.base.paths import ROOT
from book._ext.runs import records, terminal

TIMEOUT_S = 240  # on a machine that is busy, or has no instructions for bf16
NODE = re.compile(r"node(\d+)\| ")  # of allranks.cluster
RANK = re.compile(r"(?:node\d+\| )?\[rank (\d+)")
HOMES = (re.escape(str(ROOT)), re.escape(tempfile.gettempdir()), "/(?:home|root|Users)")
MACHINE = re.compile(
    rf"(?<![\w.])(?:{'|'.join(HOMES)})/|/site-packages/|\b0x[0-9a-f]{{6,}}"
)

TORCHRUN = argparse.ArgumentParser("torchrun", exit_on_error=False)
TORCHRUN.add_argument("--standalone", action="store_true")
TORCHRUN.add_argument("--nproc-per-node", "--nproc_per_node", type=int, default=1)
TORCHRUN.add_argument("--nnodes", type=int, default=1)
for flag in ("--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"):
    TORCHRUN.add_argument(flag)
for flag in ("--master-addr", "--master-port"):
    TORCHRUN.add_argument(flag)
TORCHRUN.add_argument("-m", "--module", action="store_true")
TORCHRUN.add_argument("script")
TORCHRUN.add_argument("args", nargs=argparse.REMAINDER)


def run_page(page: Path) -> Iterator[tuple[records.Command, str]]:
    """Run a page's commands in order, in one folder that is deleted afterwards.

    Yields:
        Each command and its output.

    Raises:
        ValueError: if a command ended with another exit code than the page states, or
            printed something that only this machine has.
    """
    with tempfile.TemporaryDirectory(prefix="allranks-page-") as folder:
        os.symlink(ROOT / "scripts", Path(folder, "scripts"))
        for example in ROOT.glob("book/_examples/*"):
            os.symlink(example, Path(folder, example.name))
        for command in records.commands(page.read_text("utf8")):
            with contextlib.chdir(folder):
                exit_code, output = run(command.line, command.terminal)
            where = f"{page.name}: `{command.line}`"
            if exit_code != command.exit_code:
                raise ValueError(
                    f"{where} ended with exit code {exit_code}, "
                    f"the page states {command.exit_code}:\n{output}"
                )
            if command.terminal:
                output = terminal.stand_in(output)
            output = output.replace(f"{Path(folder).resolve()}/", "")
            output = output.replace(f"{ROOT}/", "")
            if trace := machine_trace(output):
                raise ValueError(f"{where} printed what only this machine has: {trace}")
            yield command, output


def same(command: records.Command, old: str, new: str) -> bool:
    """Tell whether two outputs of a command say the same."""
    if command.terminal:
        return terminal.same(old, new)
    return records.same(old, new, command.only)


def run(line: str, raw: bool = False) -> tuple[int, str]:
    """Run a command line; return (exit code, output), the lines of ranks in rank order.

    Args:
        raw: whether to keep torchrun's own lines too, and all lines in their order.
    """
    words, env, environ = shlex.split(line), {}, dict(os.environ)
    environ.pop("OMP_NUM_THREADS", None)  # the tests set it, a reader's shell does not
    bin_ = os.path.dirname(sys.executable)  # a reader's environment is active
    environ["PATH"] = f"{bin_}{os.pathsep}{environ['PATH']}"
    while "=" in words[0]:
        name, _, env[name] = words.pop(0).partition("=")
    if words[0] == "torchrun" and not raw:
        return torchrun(words[1:], env)
    if words[0] == "torchrun":
        words[:1] = [sys.executable, str(Path(sys.executable).with_name("torchrun"))]
        loopback = "lo" if sys.platform == "linux" else "lo0"
        environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    words[0] = sys.executable if words[0] == "python" else words[0]
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            words,
            env=environ | env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its children can be ended with it
        )
        try:
            process.wait(TIMEOUT_S)
        finally:
            if raw and process.poll() is None:
                process.terminate()  # torchrun's ranks have sessions of their own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(40)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        output = file.read()
    return process.returncode, output if raw else in_rank_order(output)


def torchrun(words: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Launch with all nodes on this machine; return (exit code, the ranks' lines)."""
    options = TORCHRUN.parse_args(words)
    script = options.script
    if options.module:
        script = ROOT.joinpath(*script.split("."), "__main__.py")
    try:
        result = launch(
            script,
            options.nproc_per_node,
            *options.args,
            nnodes=options.nnodes,
            timeout=TIMEOUT_S,
            env=env,
        )
        return result.exit_code, str(result)
    except LaunchError as error:
        return error.exit_code, f"{error.launch}\n{error}".strip()


def in_rank_order(output: str) -> str:
    """Sort the lines by rank, or by node, if every line says which printed it."""
    lines = output.splitlines()
    for who in RANK, NODE:
        if all(names := [who.match(line) for line in lines]):
            order = sorted(range(len(lines)), key=lambda i: int(names[i][1]))
            return "\n".join(lines[i] for i in order)
    return "\n".join(lines)


def machine_trace(text: str) -> str | None:
    """Return the first line with a path or a memory address of this machine, if any."""
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():  # without colors
        if MACHINE.search(line):
            return line.strip()
    return None
