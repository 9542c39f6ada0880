"""One live rank: the process that joins the group and runs what it is sent."""

import datetime
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import threading
import types
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from allranks.base.report import is_user_code
from allranks.live import clock, debugger, jobs, shell
from allranks.live.calls import Recorder
from allranks.live.stdout import Stdout

# A cell's own timeout ends it long before this one.
GROUP_TIMEOUT = datetime.timedelta(minutes=30)


def serve(
    rank: int,
    world_size: int,
    device: str,
    backend: str,
    gpus: bool,
    folder: Path,
    port: int,
    environ: dict[str, str],
    conn: Connection,
) -> None:
    """Run jobs as ``rank`` until the parent closes the pipe or kills this process.

    A job comes with its number. While it runs, ``("display", ...)`` and ``("clear",
    ...)`` go out for what the rank shows. At its end goes ``("done", number, value,
    error, issued)``: the pickled value and None, or None and a traceback; and what the
    rank has issued so far, if the job was the reader's code.

    Args:
        rank: of this process.
        world_size: number of ranks in the group.
        device: ``"cpu"``, or the type of an accelerator.
        backend: of the group; "" for the one that torch names for the device.
        gpus: whether the rank gets virtual GPUs, and a group with NCCL's rules.
        folder: where the output goes, and the file by which the ranks meet.
        port: for a group that a cell makes in place of this one, as scripts do.
        environ: the parent's environment variables.
        conn: the pipe: jobs come in, messages go out.
    """
    # In a process group of its own, so that a rank's children end with the rank, while
    # a Ctrl-C in the kernel does not reach it.
    os.setsid()
    stdout, stacks = _redirect(folder, rank)
    os.environ.clear()  # a fork server still has the environment of its own start
    os.environ.update(environ)
    # Else workers of a DataLoader would come from a fork server of this rank's own,
    # which imports torch again and knows no class of a cell.
    multiprocessing.set_start_method(None, force=True)
    lock = threading.Lock()

    def send(message: tuple) -> None:
        with lock:  # a thread of the reader's may display something at any time
            conn.send(message)

    try:
        namespace = _join(rank, world_size, device, backend, gpus, folder, port)
        shell.connect(namespace, send)
        clock.install(Recorder(folder / f"{rank}.calls"))
        warnings.showwarning = clock.show_warning
    except BaseException as e:
        send(("done", 0, None, jobs.describe(e), None))
        return
    worker = _Worker(conn, send, namespace, stdout, stacks)
    send(("done", 0, None, None, clock.issued()))
    own_pid = os.getpid()
    while True:
        try:
            serial, job = conn.recv()
        except EOFError:
            return
        value, error = worker.answer(job)
        if os.getpid() != own_pid:
            # A cell forked, and its child came out here too: it is no rank, and what
            # it sent would be taken for this rank's answer.
            _end_child(error)
        try:
            issued = clock.issued() if jobs.is_code(job) and error is None else None
            send(("done", serial, value, error, issued))
        except BrokenPipeError:
            return
        except Exception as e:  # a cell has overwritten len, say
            os.write(
                2, f"this rank cannot go on: {e!r}, outside of your code\n".encode()
            )
            os._exit(1)


class _Worker:
    """What runs the jobs of one rank.

    Attributes:
        running: whether the reader's code runs, which an interrupt may stop.
        error: of the job that failed last, until the next one begins.
    """

    def __init__(
        self,
        conn: Connection,
        send: shell.Send,
        namespace: dict,
        stdout: Stdout,
        stacks: TextIO,
    ) -> None:
        self.conn, self.send, self.namespace = conn, send, namespace
        self.stdout, self.stacks, self.running = stdout, stacks, False
        self.error: BaseException | None = None
        self._listen()

    def _listen(self) -> None:
        """Take the signals of the parent, whatever an earlier cell has made of them."""
        signal.signal(signal.SIGINT, self.interrupt)
        faulthandler.unregister(signal.SIGUSR1)  # first: it restores what was before
        signal.signal(signal.SIGUSR1, self.tell_await)
        options = {"file": self.stacks, "all_threads": False, "chain": True}
        faulthandler.register(signal.SIGUSR1, **options)

    def tell_await(self, _signal: int, frame: types.FrameType | None) -> None:
        """Write where the cell awaits, if no line of the reader's is being executed.

        The fault handler sees frames, and a coroutine that waits has none on the stack.
        """
        while frame is not None and frame.f_code is not serve.__code__:
            if is_user_code(frame.f_code.co_filename):
                return
            frame = frame.f_back
        for file, line in jobs.awaited():
            self.stacks.write(f'  File "{file}", line {line} in await\n')
        self.stacks.flush()

    def interrupt(self, _signal: int, _frame: object) -> None:
        """Stop the reader's code, for the stop button; between cells do nothing."""
        if self.running:
            raise KeyboardInterrupt

    def answer(self, job: tuple) -> tuple:
        """Do what the parent asks; return the pickled value, and the error or None."""
        # None of the engine's questions, nor a push or a pull, begins a new cell: the
        # clock and the last error stay as the cell has left them.
        match job:
            case ("spans",):
                return jobs.pack(clock.spans()), None
            case ("issued",):
                return jobs.pack(clock.issued()), None
            case ("meet",):
                return self._attempt(_meet)
            case ("debug",):
                talk = debugger.Talk(self.send, self.conn)
                return self._attempt(lambda: debugger.post_mortem(self.error, talk))
        if job[0] in ("push", "pull"):
            return self._attempt(lambda: jobs.move(job, self.namespace))
        self.error = None
        if threading.current_thread() is threading.main_thread():
            self._listen()
        with self.stdout.cell():
            clock.begin()
            try:
                return self._attempt(
                    lambda: jobs.execute(job, self.namespace, shell.show), keep=True
                )
            finally:
                clock.end()
                shell.after_cell()

    def _attempt(self, work: Any, keep: bool = False) -> tuple:
        """Return what a piece of work gives or raises, whatever that is."""
        try:
            self.running = True
            value = work()
            self.running = False
            return value, None
        except BaseException as e:  # SystemExit too, since the cell has to see it
            self.running = False
            if keep:
                self.error = e
            return None, jobs.describe(e)


def _end_child(error: str | None) -> None:
    """End a process that a cell forked as Python would: with its traceback, if any."""
    if error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    os._exit(1 if error else 0)


def _meet() -> bytes:
    """Join a barrier, which shows that the group still works after an exception."""
    import torch.distributed as dist

    if dist.is_initialized():
        on_gpus = dist.get_backend() == "nccl"
        local_rank = int(os.environ["LOCAL_RANK"])
        dist.barrier(device_ids=[local_rank] if on_gpus else None)
    return jobs.pack(None)


def _redirect(folder: Path, rank: int) -> tuple[Stdout, TextIO]:
    """Send output to files, because what a rank printed has to survive the rank.

    ``N.out`` has stdout and Python's stderr. ``N.err`` has the stderr of native code
    and of children, which is shown when the cell is over. ``N.stack`` has the place
    where the rank stood when it died, or when SIGUSR1 asked for it.
    """
    for fd, name in (1, "out"), (2, "err"):
        file = os.open(
            folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )
        os.dup2(file, fd)
        os.close(file)
    sys.stdout = sys.stderr = stdout = Stdout(folder / f"{rank}.out")
    # For appending, so that the parent can empty it before it asks again.
    stacks = open(folder / f"{rank}.stack", "a")  # noqa: SIM115 - open for life
    faulthandler.enable(file=stacks, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    return stdout, stacks


def _plug_in(rank: int, world_size: int) -> Any:
    """Give this rank a node's virtual GPUs and NCCL's rules; return the rank's own.

    As under torchrun, the current device is cuda:0 until the rank sets another one.
    """
    import torch

    from allranks import vgpu
    from allranks.backends import nccl

    vgpu.plug_in(world_size, kind="cuda")
    nccl.install()
    return torch.device("cuda", rank)


def _seed() -> None:
    """Give this rank random numbers of its own, as a process of torchrun's has them.

    Forked ranks would all draw the same ones, and a replica that nobody has broadcast
    would be equal by luck.
    """
    import torch

    random.seed()
    torch.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _join(
    rank: int,
    world_size: int,
    device_type: str,
    backend: str,
    gpus: bool,
    folder: Path,
    port: int,
) -> dict[str, object]:
    """Form the group over a file, not a port; return the namespace of the cells."""
    import torch
    import torch.distributed as dist

    from allranks import backends

    torch.set_num_threads(1)
    _seed()
    dist.set_debug_level_from_env()  # which the fork server has read at its own start
    device = torch.device(device_type)
    if device_type == "cpu":
        loopback = "lo" if sys.platform == "linux" else "lo0"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # works offline too
    else:
        device = torch.device(device_type, rank)
        torch.accelerator.set_device_index(rank)
    if gpus:
        device, backend = _plug_in(rank, world_size), "nccl"
    os.environ.update(
        {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "GROUP_RANK": "0"}
        | {"WORLD_SIZE": f"{world_size}", "LOCAL_WORLD_SIZE": f"{world_size}"}
        | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}  # for a second group
    )
    if backend not in ("", "gloo", "nccl"):
        backend = backends.register(backend)
    dist.init_process_group(
        backend or dist.get_default_backend_for_device(device),
        store=dist.FileStore(str(folder / "store"), world_size),
        rank=rank,
        world_size=world_size,
        timeout=GROUP_TIMEOUT,
        device_id=None if device_type == "cpu" else device,
    )
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # so that a cell's classes can be pickled
    names = {"rank": rank, "local_rank": rank, "world_size": world_size}
    main.__dict__.update(names, device=device, torch=torch, dist=dist)
    return main.__dict__
