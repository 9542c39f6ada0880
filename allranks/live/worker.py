"""One live rank: the process that joins the group and runs what it is sent."""

import datetime
import faulthandler
import io
import os
import signal
import sys
import types
from multiprocessing.connection import Connection
from pathlib import Path

from allranks.live import jobs

GROUP_TIMEOUT = datetime.timedelta(
    minutes=30
)  # a cell's own timeout ends it long before


def serve(rank, world_size, device, folder: Path, environ, conn: Connection) -> None:
    """Live as ``rank`` until the parent closes ``conn``, or someone kills us."""
    os.setsid()  # own group: a rank's children end with it, the kernel's Ctrl-C doesn't
    _redirect(folder, rank)
    os.environ.clear()  # a fork server remembers the environment of its own start
    os.environ.update(environ)
    try:
        namespace = _join(rank, world_size, device, folder)
    except BaseException as e:
        conn.send((None, jobs.describe(e)))
        return
    conn.send((None, None))
    while True:
        try:
            job = conn.recv()
        except EOFError:
            return
        try:
            answer = (jobs.execute(job, namespace), None)
        except BaseException as e:  # SystemExit too: it must reach the cell
            answer = (None, jobs.describe(e))
        conn.send(answer)


def _redirect(folder: Path, rank: int) -> None:
    """Send output to files: what a rank printed survives its death.

    ``N.out`` has stdout and Python's stderr; ``N.err`` the stderr of native code,
    which is shown only when the rank dies; ``N.stack`` where it stood
    when it died, or when SIGUSR1 asked.
    """
    for fd, name in (1, "out"), (2, "err"):
        file = os.open(
            folder / f"{rank}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )
        os.dup2(file, fd)
        os.close(file)
    raw = io.FileIO(1, "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    sys.stderr = sys.stdout
    stack = open(folder / f"{rank}.stack", "w")  # noqa: SIM115 - open for life
    faulthandler.enable(file=stack, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)


def _join(rank, world_size, device_type, folder: Path) -> dict:
    """Form the group over a file (no port); return the namespace of the cells."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device(device_type)
    if device_type == "cpu":
        loopback = "lo" if sys.platform == "linux" else "lo0"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # works off-line too
    else:
        device = torch.device(device_type, rank)
        torch.accelerator.set_device_index(rank)
    os.environ.update(
        {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "GROUP_RANK": "0"}
        | {"WORLD_SIZE": f"{world_size}", "LOCAL_WORLD_SIZE": f"{world_size}"}
    )
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
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
