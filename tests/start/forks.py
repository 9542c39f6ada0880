"""Start Python programs by forking a process that has already imported torch.

A short torchrun spends most of its time on importing torch in each of its processes.
Here a server imports it once; ``Popen`` asks it to fork, and the child runs the program
as ``python`` would. A forked torchrun forks a server of its own before it starts any
thread, and its ranks are forked from that one; of ``launcher``'s, rank 0 is started.
Some tests still start a real interpreter, to cover how it starts and ends; the status
page lists them.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import functools
import gc
import importlib
import io
import multiprocessing.process
import os
import pickle
import random
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

VARIABLE = "ALLRANKS_FORKS"  # the path of the server's socket: FOLDER/PID-NAME
MOST = 2**20  # bytes of a request, most of which is its environment
PRELOAD = (
    "torch._dynamo",  # otherwise the first optimizer imports it
    "torch.distributed.run",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.multiprocessing.spawn",
    "torch.profiler",
    "torch.utils.data.distributed",
    "numpy",
    "sklearn.datasets",
)


class Popen:
    """A forked program, with the part of ``subprocess.Popen`` that the tests use.

    Args:
        args: ``[python, ...]`` with a script or ``-m`` module, as for an interpreter.
        stdin, stdout, stderr: files, descriptors, ``DEVNULL``, or for stderr
            ``STDOUT``; ``None`` is this process's own.
        preexec_fn: ignored, because the child ends with its server in any case.
        server: the path of a server's socket; by default the one that all tests share.
        forks: whether a torchrun forks rank 0 like its other ranks, or starts it.
    """

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdin=None,
        stdout=None,
        stderr=None,
        start_new_session: bool = False,
        preexec_fn=None,
        server: str | None = None,
        forks: bool = True,
    ):
        self.args, self.returncode = list(args), None
        sys.audit("subprocess.Popen", self.args[0], self.args, None, None)
        request = {
            "args": self.args,
            "env": dict(os.environ if env is None else env),
            "cwd": os.getcwd(),
            "session": start_new_session,
            "forks": forks,
        }
        null = os.open(os.devnull, os.O_RDWR)
        try:
            files = [_descriptor(f, i, null) for i, f in enumerate((stdin, stdout))]
            same = stderr == subprocess.STDOUT
            files.append(files[1] if same else _descriptor(stderr, 2, null))
            self._control = _connect(server) if server else _connect_or_start()
            socket.send_fds(self._control, [pickle.dumps(request)], files)
        finally:
            os.close(null)
        self.pid = int(self._control.recv(32))

    def poll(self) -> int | None:
        """Return the exit code (-N after signal N), or None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program to end, for at most ``timeout`` seconds.

        Raises:
            subprocess.TimeoutExpired: if it still runs.
        """
        if self.returncode is None:
            # Not select(), which refuses descriptors from 1024 on.
            ready = select.poll()
            ready.register(self._control, select.POLLIN)
            if not ready.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            told = self._control.recv(32)  # nothing, if the server itself is gone
            self.returncode = int(told or -signal.SIGKILL)
            self._control.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def popen(args: Sequence[str], server: str | None = None, **how):
    """Fork a Python program that is a file or a module; start anything else."""
    words = [word for word in args if word != "-u"]
    program = words[0] == sys.executable and len(words) > 1
    if program and (words[1] == "-m" or os.path.isfile(words[1])):
        return Popen(args, server=server, **how)
    return subprocess.Popen(args, **how)


def launcher(args: Sequence[str], **how) -> Popen:
    """Fork a torchrun that starts rank 0 as a real one does, and forks the others."""
    return Popen(args, forks=False, **how)


def popen_but_first(args: Sequence[str], server: str, env: Mapping[str, str], **how):
    """Fork a rank, but start an interpreter for rank 0."""
    if env["RANK"] == "0":
        return subprocess.Popen(args, env=env, **how)
    return popen(args, server=server, env=env, **how)


def _descriptor(file, standard: int, null: int) -> int:
    if file is None:
        return standard
    if file == subprocess.DEVNULL:
        return null
    return file if isinstance(file, int) else file.fileno()


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _connect(path: str) -> socket.socket:
    control = _socket()
    try:
        control.connect(path)
    except OSError:
        control.close()
        raise
    return control


def _connect_or_start() -> socket.socket:
    """Connect to the server that all tests share, and start it if it isn't running."""
    path = os.environ[VARIABLE]
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            return _connect(path)
        subprocess.Popen(
            [sys.executable, __file__, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for _ in range(600):
            time.sleep(0.1)
            with contextlib.suppress(OSError):
                return _connect(path)
    raise TimeoutError("the server of forks did not start within a minute")


def serve(listener: socket.socket, owner: int) -> None:
    """Fork a child for each request and report its end, until the owner is gone."""
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    controls = {}  # by process id
    while _lives(owner):
        ready, _, _ = select.select([listener, wakes], [], [], 1.0)
        if wakes in ready:
            os.read(wakes, 512)
            _reap(controls)
        if listener in ready:
            control, _ = listener.accept()
            data, files, _, _ = socket.recv_fds(control, MOST, 3)
            if not data:
                control.close()
                continue
            pid = os.fork()
            if pid == 0:
                for other in (listener, control, *controls.values()):
                    other.close()
                os.close(wakes)
                os.close(wake)
                _become(pickle.loads(data), files)
            controls[pid] = control
            control.send(str(pid).encode())
            for file in files:
                os.close(file)
    for pid in controls:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    os._exit(0)


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _end_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, so that none is orphaned."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _reap(controls: dict[int, socket.socket]) -> None:
    while controls:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        code = os.waitstatus_to_exitcode(status)
        with controls.pop(pid) as control, contextlib.suppress(OSError):
            control.send(str(code).encode())


def _become(request: dict, files: list[int]) -> None:
    """Run the requested program in a fresh fork, and exit with its code."""
    code = 1
    try:
        _prepare(request, files)
        code = _run(request["args"], request["forks"])
    except BaseException:  # raised in this file, or in a program's exit functions
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _prepare(request: dict, files: list[int]) -> None:
    """Set up files, folder, environment and signals as a new interpreter has them."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _end_with_parent()
    if request["session"]:
        os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.chdir(request["cwd"])
    multiprocessing.process.ORIGINAL_DIR = request["cwd"]
    os.environ.clear()
    os.environ.update(request["env"])
    raw = [io.FileIO(i, "wb", closefd=False) for i in (1, 2)]
    unbuffered = "-u" in request["args"] or "PYTHONUNBUFFERED" in os.environ
    out = raw[0] if unbuffered else io.BufferedWriter(raw[0])
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=unbuffered)
    sys.stderr = io.TextIOWrapper(
        raw[1], encoding="utf-8", errors="backslashreplace", write_through=True
    )
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.__stdout__, sys.__stderr__, sys.__stdin__ = sys.stdout, sys.stderr, sys.stdin
    random.seed()
    sys.modules["numpy"].random.seed()
    tempfile.tempdir = None
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable(file=2)
    torch = sys.modules["torch"]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    torch.distributed.set_debug_level_from_env()


def _run(args: list[str], forks: bool) -> int:
    """Run ``python ARGS``; return the exit code that an interpreter would have."""
    words = [word for word in args[1:] if word != "-u"]
    module = words.pop(0) == "-m" if words[0] == "-m" else False
    sys.argv = words
    agents = words[:2]  # the second, if a rehearsal's own agent comes first
    torchrun = "torch.distributed.run" in agents or words[0].endswith("/torchrun")
    if torchrun:
        _fork_ranks_too(popen if forks else popen_but_first)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    code = 0
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            sys.modules.pop(words[0], None)  # it has to run again, as __main__
            runpy._run_module_as_main(words[0], alter_argv=True)
        else:
            main.__file__ = path = os.path.abspath(words[0])  # as an interpreter does
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
            exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException:
        kind, error, trace = sys.exc_info()
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next
        sys.excepthook(kind, error.with_traceback(trace), trace)
        code = 1
        if kind is KeyboardInterrupt:
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    return code


def _fork_ranks_too(start: Callable) -> None:
    """Fork a server for a torchrun's ranks while the process has only one thread."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import (
        subprocess_handler as handler,
    )

    path, owner = os.path.join(tempfile.mkdtemp(), "ranks"), os.getpid()
    with _socket() as listener:
        listener.bind(path)
        listener.listen()
        if os.fork() == 0:
            _end_with_parent()
            serve(listener, owner)
    atexit.register(shutil.rmtree, os.path.dirname(path), ignore_errors=True)

    handler.Popen = functools.partial(start, server=path)


def main() -> None:
    """Import everything once, then serve until the tests' first process is gone."""
    path = sys.argv[1]
    gc.disable()
    for name in PRELOAD:
        importlib.import_module(name)
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False  # torch would take its operators apart, one by one
    gc.freeze()
    gc.enable()
    sys.path.pop(0)  # this file's folder
    Path(path).unlink(missing_ok=True)  # a killed server leaves its socket behind
    with _socket() as listener:
        listener.bind(path)
        listener.listen(64)
        serve(listener, int(os.path.basename(path).partition("-")[0]))


if __name__ == "__main__":
    main()
