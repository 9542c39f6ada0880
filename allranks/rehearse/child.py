"""What runs in each process of a rehearsal, before the reader's script.

    python -m allranks.rehearse.child train.py --epochs 1

A new interpreter can be reached only where it starts. So the children of
``torch.multiprocessing.spawn`` begin in ``spawned``, and the scripts that a script or a
launcher starts with ``subprocess`` get this module before them. A forked process has
everything from its parent.
"""

import atexit
import builtins
import contextlib
import functools
import importlib.util
import io
import multiprocessing.process
import multiprocessing.spawn
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed.rendezvous
import torch.multiprocessing

from allranks.backends import nccl
from allranks.rehearse import recorder, records, script_errors
from allranks.rehearse.imports import when_imported
from allranks.rehearse.launch import reach
from allranks.vgpu import plug_in

# Modules of torch that have the name of a function beside them.
torch_spawn = sys.modules["torch.multiprocessing.spawn"]
torch_rendezvous = sys.modules["torch.distributed.rendezvous"]
# What ``begin`` replaces, as it was.
_wrap, _bootstrap = torch_spawn._wrap, multiprocessing.process.BaseProcess._bootstrap
_start, _create_store = subprocess.Popen.__init__, torch_rendezvous._create_c10d_store
_command_line = multiprocessing.spawn.get_command_line
BEGIN = "from allranks.rehearse.child import spawned; spawned(); "


def begin(of_command: bool = False) -> None:
    """Give this process GPUs that are called cuda, NCCL's rules, and a recorder."""
    stage = records.stage()
    if stage.nodes > 1:  # GPUs of the same number are other GPUs on another host
        os.environ["ALLRANKS_HOST"] = f"node{os.environ['GROUP_RANK']}"
    torch.set_num_threads(1)  # ranks share the laptop's cores
    plug_in(stage.gpus, stage.memory or None, kind="cuda", card=stage.card or None)
    nccl.install()
    nccl.set_patience(stage.watch_s)
    torch_rendezvous._create_c10d_store = impatient_store(2 * stage.watch_s)
    when_imported(script_errors.COMPILER, script_errors.refuse_cuda)
    for name, path in stage.stubs.items():
        _import_as(name, path)
    multiprocessing.spawn.get_command_line = get_command_line
    torch_spawn._wrap = functools.wraps(_wrap)(wrap_spawned)  # is pickled by its name
    multiprocessing.process.BaseProcess._bootstrap = bootstrap_noted
    subprocess.Popen.__init__ = functools.wraps(_start)(start_program)
    recorder.begin(stage, of_command)
    if stage.world_size:
        from allranks.rehearse import dry  # takes a while, and few need it

        dry.install(recorder.current(), stage.num_steps, leave)


def impatient_store(patience_s: float) -> Callable:
    """Return what makes a group's store, whose ranks have so many seconds to come."""

    @functools.wraps(_create_store)
    def create_store(
        host: str, port: int, rank: int, size: int, timeout: timedelta, *more: Any
    ) -> Any:
        # A rank that nobody started is no reason to wait for many minutes. Later the
        # store has its own timeout again, as a rank may take long to reach a barrier.
        patience = min(timeout, timedelta(seconds=patience_s))
        with recorder.rendezvous():
            store = _create_store(host, port, rank, size, patience, *more)
        store.set_timeout(timeout)
        return store

    return create_store


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
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, ValueError, OSError):  # it is closed
            stream.flush()
    os._exit(code)


def wrap_spawned(function: Callable, *args: Any) -> None:
    """Run the function of a ``torch.multiprocessing`` process, and note its error."""

    def noted(*own: Any) -> Any:
        with recorder.failures():
            return function(*own)

    _wrap(noted, *args)


def bootstrap_noted(
    self: multiprocessing.process.BaseProcess, *args: Any, **how: Any
) -> int:
    """Run a process of multiprocessing, and note its error."""
    run = self.run

    def noted() -> None:
        try:
            with recorder.failures():
                run()
        except Exception as error:  # which multiprocessing would print
            script_errors.tell(error, f"Process {self.name}:\n")
            raise SystemExit(1) from None

    self.run = noted
    return _bootstrap(self, *args, **how)


def start_program(self: subprocess.Popen, args: Any, *more: Any, **how: Any) -> None:
    """Start a program; in a script for this Python, this module comes first."""
    ours = records.VARIABLE in (how.get("env") or os.environ)
    other = more or how.get("shell") or how.get("executable")
    if ours and args and isinstance(args, (list, tuple)) and not other:
        args = reach(args)
    _start(self, args, *more, **how)


def _import_as(name: str, path: str) -> None:
    """Let ``import name`` find a file of the reader's, also in a package: "a.b"."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    module.__path__ = []  # so that parts of it can have stand-ins, too
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, part = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], part, module)


def main(words: list[str]) -> NoReturn:
    """Begin, run the script or module as __main__, and end with its exit code."""
    begin(of_command=True)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # else ranks' lines would mix
        stream.reconfigure(line_buffering=True, write_through=False)
    try:
        run_as_main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except Exception as error:
        own = sys.excepthook is sys.__excepthook__
        if own or sys.excepthook.__module__.startswith("torch."):  # to mark the rank
            script_errors.tell(error)
        else:
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
            sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
            _run_file(os.path.abspath(words[0]))


def _run_file(path: str) -> None:
    """Run a file as Python runs a script: __file__ is its path, sys.argv as typed."""
    main = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), vars(main))


if __name__ == "__main__":
    main(sys.argv[1:])
