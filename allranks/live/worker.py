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

# A cell's own timeout ends it long before this one.
GROUP_TIMEOUT = datetime.timedelta(minutes=30)


def serve(
    rank: int,
    world_size: int,
    device: str,
    folder: Path,
    environ: dict[str, str],
    conn: Connection,
) -> None:
    """Run jobs as ``rank`` until the parent closes the pipe or kills this process.

    Args:
        rank: of this process.
        world_size: number of ranks in the group.
        device: ``"cpu"``, or the type of an accelerator.
        folder: where the output goes, and the file by which the ranks meet.
        environ: the parent's environment variables.
        conn: the pipe: jobs come in, ``(value, error)`` goes out.
    """
    # In a process group of its own, so that a rank's children end with the rank, while
    # a Ctrl-C in the kernel does not reach it.
    os.setsid()
    _redirect(folder, rank)
    os.environ.clear()  # a fork server still has the environment of its own start
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
        except BaseException as e:  # SystemExit too, since the cell has to see it
            answer = (None, jobs.describe(e))
        conn.send(answer)


def _redirect(folder: Path, rank: int) -> None:
    """Send output to files, because what a rank printed has to survive the rank.

    ``N.out`` has stdout and Python's stderr. ``N.err`` has the stderr of native code,
    which is shown only if the rank dies. ``N.stack`` has the place where the rank stood
    when it died, or when SIGUSR1 asked for it.
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


def _join(
    rank: int, world_size: int, device_type: str, folder: Path
) -> dict[str, object]:
    """Form the group over a file, not a port; return the namespace of the cells."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device(device_type)
    if device_type == "cpu":
        loopback = "lo" if sys.platform == "linux" else "lo0"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # works offline too
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
