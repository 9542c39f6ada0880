"""The reader's own command: our child is put into it, and it runs on each node.

``rewrite`` takes it as it is typed on a cluster. ``run`` starts it, and sees to it that
everything ends.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil
from torch.distributed import TCPStore
from torch.distributed.run import get_args_parser

from allranks.base.signals import handling
from allranks.launch.torchrun import end_with_parent, stop
from allranks.rehearse.records import VARIABLE, Stage
from allranks.vgpu.cuda.functions import visible

CHILD, AGENT = "allranks.rehearse.child", "allranks.rehearse.agent"
PYTHON = re.compile(r"python[\d.]*")
FLAGS = {"-u", "-B", "-O", "-q"}  # of Python, which our child may have as well
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
# torchrun's flags for where it runs; on several nodes the rehearsal sets them
PLACES = {
    "--nnodes",
    "--node-rank",
    "--local-addr",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--master-addr",
    "--master-port",
}
PLACES |= {name[:2] + name[2:].replace("-", "_") for name in PLACES}


class CommandError(ValueError):
    """A command that cannot be rehearsed, in one sentence."""


def rewrite(
    words: Sequence[str], where: Sequence[str] = (), gpus: int = 1
) -> list[str]:
    """Return the command that starts the reader's script inside our child.

    Args:
        words: ``train.py ARGS``, ``python train.py``, ``python -m module``,
            ``torchrun ARGS train.py``, ``python -m torch.distributed.run ...``, or an
            installed launcher in Python that starts Python itself.
        where: flags that tell torchrun its node, in place of the reader's.
        gpus: of a node; torchrun itself sees none, so it cannot count them.

    Raises:
        CommandError: if it is none of these, if there is no such script, or if several
            nodes need torchrun.

    >>> rewrite(["python", "-m", "train", "--lr", "1"])[1:]
    ['-u', '-m', 'allranks.rehearse.child', '-m', 'train', '--lr', '1']
    >>> rewrite(["torchrun", "--nproc-per-node", "2", "-m", "train"])[-6:]
    ['2', '--module', '--', 'allranks.rehearse.child', '-m', 'train']
    """
    if not words:
        raise CommandError("there is no command after the variables")
    program = os.path.basename(words[0])
    if program == "torchrun":
        return _torchrun("torch.distributed.run", list(words[1:]), where, gpus)
    flags, rest = [], list(words)
    if PYTHON.fullmatch(program):
        flags, rest = _split(words[1:])
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in LAUNCHERS:
            return _torchrun(rest[1], rest[2:], where, gpus)
        if not rest:
            raise CommandError("python without a script: name the script to rehearse")
        if rest[0] != "-m" and rest[0].startswith("-"):
            raise CommandError(
                f"{shlex.join(words)}: python's {rest[0]} cannot be rehearsed, "
                "only a script or -m module"
            )
    elif (path := shutil.which(words[0])) and _is_python(path):
        rest[0] = path  # a launcher that was installed, such as accelerate
    elif not program.endswith(".py"):
        raise CommandError(
            f"{words[0]}: give a script, or the command with python or torchrun that "
            "it would run"
        )
    if where:
        raise CommandError("--nodes needs a command that begins with torchrun")
    if rest[0] != "-m":
        _check(rest[0])
    return [sys.executable, "-u", *flags, "-m", CHILD, *rest]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split Python's own flags from what it runs."""
    count = next((i for i, w in enumerate(words) if w not in FLAGS), len(words))
    return list(words[:count]), list(words[count:])


def variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split what a shell would put into the environment from the command after it.

    >>> variables(["CUDA_VISIBLE_DEVICES=0", "train.py", "x=1"])
    ({'CUDA_VISIBLE_DEVICES': '0'}, ['train.py', 'x=1'])
    """
    rest, env = list(words), {}
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        name, _, value = rest.pop(0).partition("=")
        env[name] = value
    return env, rest


def reach(words: Sequence[str]) -> list[str]:
    """Return a command of the script's own, with our child in it if it runs Python.

    >>> reach([sys.executable, "-u", "train.py"])[1:]
    ['-u', '-m', 'allranks.rehearse.child', 'train.py']
    >>> reach(["git", "status"]), reach([sys.executable, "-c", "pass"])[1:]
    (['git', 'status'], ['-c', 'pass'])
    """
    words = [os.fsdecode(word) for word in words]
    place, program = os.path.split(shutil.which(words[0]) or "")
    ours = PYTHON.fullmatch(program) and place == os.path.dirname(sys.executable)
    flags, rest = _split(words[1:])
    runs = bool(rest) and (rest[0] == "-m" or rest[0].endswith(".py"))
    if not (ours and runs) or CHILD in words:
        return words
    return [words[0], *flags, "-m", CHILD, *rest]


def _is_python(path: str) -> bool:
    """Tell whether a program is a script for Python."""
    with open(path, "rb") as file:
        return re.match(rb"#!.*python", file.readline(200)) is not None


def _check(script: str) -> None:
    if not os.path.isfile(script):
        raise CommandError(f"{script}: there is no such script here")


def _torchrun(
    agent: str, words: list[str], where: Sequence[str], gpus: int
) -> list[str]:
    """Return the agent's command line, which runs our child as a module."""
    args = _parse(words)
    fewest = args.nnodes.partition(":")[0]
    if not where and fewest.isdigit() and int(fewest) > 1:
        raise CommandError(
            f"torchrun --nnodes {args.nnodes} waits for other nodes: add --nodes "
            f"{fewest} before the command"
        )
    at = len(words) - len(args.training_script_args) - 1
    while words[at] != args.training_script:
        at -= 1  # argparse has taken a "--" out of the script's words
    flags = words[:at]
    flags = [word for word in flags if word not in ("-m", "--module", "--")]
    if where:
        flags = [*_without_places(flags), *where]
    if args.nproc_per_node in ("gpu", "auto"):
        flags.append(f"--nproc-per-node={gpus}")  # the last one holds
    if not args.module:
        _check(args.training_script)
    script = _script(args)
    child = "--module", "--", CHILD  # what follows "--" is no flag of the agent's
    return [sys.executable, "-u", "-m", AGENT, agent, *flags, *child, *script]


def _parse(words: Sequence[str]) -> Namespace:
    """Return what torchrun makes of its words."""
    parser = get_args_parser()
    parser.add_argument("--use-env", "--use_env", action="store_true")  # of launch
    parser.error = _complain
    args = parser.parse_args(words)
    if args.no_python:
        raise CommandError(
            "torchrun --no-python cannot be rehearsed: it runs no Python"
        )
    return args


def _script(args: Namespace) -> list[str]:
    """Return the words with which torchrun starts Python."""
    script = [args.training_script, *args.training_script_args]
    return ["-m", *script] if args.module else script


def alone(
    words: Sequence[str], world_size: int, gpus: int = 1
) -> tuple[list[str], int]:
    """Return the command that starts rank 0 without the others, and a node's GPUs.

    Args:
        words: the reader's command, with variables before it if the reader has any.
        world_size: of the job, which says how many nodes there are.
        gpus: of a node, for a command that does not tell how many ranks a node has.

    Raises:
        CommandError: if nodes of that size do not make the world.

    >>> alone(["torchrun", "--nproc-per-node", "4", "train.py", "--lr=1"], 8)[0][-3:]
    ['python', 'train.py', '--lr=1']
    """
    own, words = variables(words)
    if words[:1] == ["torchrun"] or (words[2:] and words[2] in LAUNCHERS):
        args = _parse(words[1:] if words[0] == "torchrun" else words[3:])
        words, ranks = ["python", *_script(args)], args.nproc_per_node
        gpus = int(ranks) if ranks.isdigit() else gpus
    if world_size % gpus:
        raise CommandError(
            f"--world-size {world_size} is no multiple of the {gpus} ranks of a node"
        )
    about = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "GROUP_RANK": 0,
        "ROLE_RANK": 0,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": gpus,
        "GROUP_WORLD_SIZE": world_size // gpus,
        "ROLE_WORLD_SIZE": world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,  # which nobody listens to
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "none",
    }
    first = [f"{name}={value}" for name, value in (own | about).items()]
    return [*first, *words], gpus


def _without_places(flags: list[str]) -> list[str]:
    """Leave out what the reader says about nodes and where they meet."""
    others, skip = [], False
    for word in flags:
        name, _, value = word.partition("=")
        if skip:
            skip = False
        elif name in PLACES:
            skip = not value  # "--nnodes 2" is two words
        elif word != "--standalone":
            others.append(word)
    return others


def _complain(message: str) -> None:
    raise CommandError(f"torchrun: {message}")


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
    with handling(signal.SIGTERM, _terminate):
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


def _terminate(*_: Any) -> NoReturn:
    """Raise ``Terminated``, to handle a SIGTERM."""
    raise Terminated


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
