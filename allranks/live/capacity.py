"""Whether this machine has what ranks need: devices, open files, room on the disk."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from allranks.base.report import need_unix
from allranks.topics.links import network

BACKENDS = ("gloo", "shm", "link")  # of ranks on the CPU; link:eth1 says which
MAX_RANKS = 64  # processes; with more, a single machine would run out of memory


def where(world_size: int, device: str, backend: str, gpus: bool) -> str:
    """Say in words where ranks are, and over what they talk if that is special."""
    if gpus:
        last = world_size - 1
        names = f"virtual GPUs cuda:0–{last}" if last else "virtual GPU cuda:0"
        return f"{names}, backend nccl"
    return f"{device}, backend {backend}" if backend else device


def check_possible(
    world_size: int, device: str, backend: str = "", gpus: bool = False
) -> None:
    """Raise, with one sentence, for ranks that this machine cannot have.

    Raises:
        ValueError: if the number is impossible, the device is missing here, or the
            backend is none of ``BACKENDS``, or not for that device, or there are to be
            virtual GPUs as well.
        RuntimeError: on Windows.
    """
    need_unix("live ranks")
    # What costs nothing to find out comes first, and torch, whose import takes seconds,
    # is asked last: a typo is answered at once.
    if isinstance(world_size, bool) or not isinstance(world_size, int):
        raise ValueError(f"the number of ranks must be an integer, not {world_size!r}")
    if not 1 <= world_size <= MAX_RANKS:
        raise ValueError(f"{world_size} ranks: the number must be 1 to {MAX_RANKS}")
    _check_open_files(world_size)
    if gpus and (backend or device != "cpu"):
        other = f"backend {backend!r}" if backend else f"device {device!r}"
        raise ValueError(
            f"{other}: virtual GPUs have cuda and nccl in their place, so leave it out"
        )
    name, _, link = backend.partition(":")
    if backend and (name not in BACKENDS or (link and name != "link")):
        raise ValueError(f"backend {backend!r}: choose {', '.join(BACKENDS)}")
    if name == "link":
        network.parse(link or os.environ.get(network.VARIABLE, ""))
    if device == "cpu":
        _check_interface()
        return
    if backend:
        raise ValueError(
            f"backend {backend!r} is for device 'cpu': on {device!r}, leave it out"
        )
    import torch

    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is None or gpu.type != device:
        found = f"an accelerator of type {gpu.type}" if gpu else "no accelerator"
        raise ValueError(f"device {device!r}: this machine has {found}; try 'cpu'")
    num_gpus = torch.accelerator.device_count()
    if world_size > num_gpus:
        raise ValueError(
            f"{world_size} ranks need {world_size} GPUs, one each; this machine has "
            f"{num_gpus}: ask for {num_gpus}, or for device 'cpu'"
        )


def _check_interface() -> None:
    """Raise if gloo is told to use a network interface that is not there."""
    name, known = os.environ.get("GLOO_SOCKET_IFNAME"), psutil.net_if_addrs()
    if name and not any(part in known for part in name.split(",")):
        raise ValueError(
            f"GLOO_SOCKET_IFNAME={name}: this machine has {', '.join(sorted(known))}; "
            "name one of them, or unset the variable"
        )


def _check_open_files(world_size: int) -> None:
    """Raise if the parent would run out of file descriptors.

    Each rank has a pipe and a sentinel there, and each start needs some more for a
    moment.
    """
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = psutil.Process().num_fds() + 3 * world_size + 24
    if needed > limit:
        raise ValueError(
            f"{world_size} ranks need about {needed} open files, and this process may "
            f"have {limit}: raise the limit (ulimit -n {max(1024, 2 * needed)}) in the "
            "shell that starts it, or ask for fewer ranks"
        )


def check_memory(names: str, num_bytes: int, num_ranks: int) -> None:
    """Raise if ranks cannot all receive a value, which each holds twice meanwhile.

    Otherwise the system would end a rank, or the notebook's own process.

    Args:
        names: of the variables.
        num_bytes: of their pickled values.
        num_ranks: how many get a copy.

    Raises:
        ValueError: if there is less memory than that.
    """
    needed, left = 2 * num_bytes * num_ranks, psutil.virtual_memory().available
    if needed > left:
        raise ValueError(
            f"{names}: to copy {num_bytes / 1e9:.2f} GB to {num_ranks} ranks takes "
            f"{needed / 1e9:.1f} GB of memory for a moment, and {left / 1e9:.1f} GB "
            "are free: push to fewer ranks, or let each rank make or load its own"
        )


def new_folder() -> Path:
    """Return a new folder, on a disk that has room for what ranks write.

    Raises:
        OSError: if the disk is full; the sentence names the folder.
    """
    where = tempfile.gettempdir()
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="allranks-"))
        (folder / "room").write_bytes(bytes(1 << 16))
        (folder / "room").unlink()
    except OSError as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise explained(error, where) from None
    return folder


def explained(error: OSError, where: str | Path) -> OSError:
    """Return an error that names the folder which is full, or whose name is too long.

    Args:
        error: what happened to a file of the ranks' output.
        where: the folder for temporary files.
    """
    if "path too long" in str(error):  # of a socket, which has no number
        return OSError(
            f"the folder for temporary files, {where}, has too long a name for a "
            "socket: set TMPDIR to a shorter one and restart"
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return OSError(
        f"no space left on the disk of {where}, where the output of ranks goes: free "
        "some, or set TMPDIR to another folder and restart"
    )
