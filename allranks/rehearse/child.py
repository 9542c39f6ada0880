"""What runs in each process of a rehearsal, before the reader's script.

    python -m allranks.rehearse.child train.py --epochs 1

Children of ``torch.multiprocessing.spawn`` begin in ``spawned``, since the start of a
new interpreter is the only place where they can be reached. Forked ones have all.
"""

import atexit
import functools
import importlib.util
import multiprocessing.process
import multiprocessing.spawn
import os
import runpy
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.multiprocessing

from allranks.backends import nccl
from allranks.rehearse import recorder, settings
from allranks.vgpu import plug_in

torch_spawn = sys.modules["torch.multiprocessing.spawn"]  # the name is a function
_wrap, _run = torch_spawn._wrap, multiprocessing.process.BaseProcess.run
_command_line = multiprocessing.spawn.get_command_line
BEGIN = "from allranks.rehearse.child import spawned; spawned(); "


def begin(of_command: bool = False) -> None:
    """Give this process GPUs that are called cuda, NCCL's rules, and a recorder."""
    stage = settings.read()
    if stage.nodes > 1:  # GPUs of the same number are other GPUs on another host
        os.environ["ALLRANKS_HOST"] = f"node{os.environ['GROUP_RANK']}"
    torch.set_num_threads(1)  # ranks share the laptop's cores
    plug_in(stage.gpus, stage.memory or None, kind="cuda", card=stage.card or None)
    nccl.install()
    nccl.set_patience(stage.watch_s)
    for name, path in stage.stubs.items():
        _put_in_place(name, path)
    multiprocessing.spawn.get_command_line = get_command_line
    torch_spawn._wrap = functools.wraps(_wrap)(wrap)  # is pickled by its name
    multiprocessing.process.BaseProcess.run = run
    recorder.begin(stage, of_command)


def get_command_line(**kwargs: Any) -> list[str]:
    """Return how a spawned child starts: as it would, and with ``spawned`` first."""
    words = _command_line(**kwargs)
    if "-c" in words:
        words[words.index("-c") + 1] = BEGIN + words[words.index("-c") + 1]
    return words


def spawned() -> None:
    """Begin in a spawned process, and see to its end."""
    begin()
    own = multiprocessing.spawn._main
    multiprocessing.spawn._main = lambda *args: leave(own(*args))


def leave(code: int) -> NoReturn:
    """End this process as Python does, but free nothing.

    A process that has used DDP over gloo is sometimes aborted while torch frees what is
    left, after it has done everything right (torch 2.13). That is no fault of the
    reader's script, so it must not become the script's exit code.
    """
    threading._shutdown()  # joins the threads that Python itself would wait for
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wrap(function: Callable, *args: Any) -> None:
    """Run the function of a ``torch.multiprocessing`` process, and note its error."""

    def noted(*own: Any) -> Any:
        with recorder.failures():
            return function(*own)

    _wrap(noted, *args)


def run(self: multiprocessing.process.BaseProcess) -> None:
    """Run a process of multiprocessing, and note its error."""
    with recorder.failures():
        _run(self)


def _put_in_place(name: str, path: str) -> None:
    """Let ``import name`` find a file of the reader's."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def main(words: list[str]) -> NoReturn:
    """Begin, run the script or module as __main__, and end with its exit code."""
    begin(of_command=True)
    try:
        run_as_main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code)


def run_as_main(words: list[str]) -> None:
    """Run the script or module, and note what ends it."""
    if words[0].startswith("--local-rank="):  # torch.distributed.launch puts it first
        after = 3 if words[1] == "-m" else 2
        words = [*words[1:after], words[0], *words[after:]]
    with recorder.failures():
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
            runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
