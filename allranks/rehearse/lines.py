"""Where in the reader's own code something happens, and what torch was doing."""

import importlib.util
import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from allranks.vgpu import autograd, dispatch

HERE = f"{Path(__file__).parents[1].as_posix()}/"
TORCHS = f"{Path(importlib.util.find_spec('torch').origin).parent.as_posix()}/"
PACKAGES = "/site-packages/", "/dist-packages/"  # of this Python, the user's, Debian's
DECORATORS = "/typing_extensions.py"  # are around torch's functions, wherever it lies
LIBRARY = "<", Path(sysconfig.get_path("stdlib")).as_posix()
READER, TORCH, OURS = "reader", "torch", "ours"
# torch's files on the way from the reader's .item(), .cpu() or print to the device
PLUMBING = {
    "_tensor.py",
    "_tensor_str.py",
    "_ops.py",
    "utils/_pytree.py",
    "autograd/function.py",
}
FLATTEN = {  # in one tensor what DDP broadcasts
    ("distributed/utils.py", "_sync_params_and_buffers"),
    ("nn/parallel/distributed.py", "_distributed_broadcast_coalesced"),
}
DOING = {  # of ours, by file and name
    (code.co_filename, code.co_name): doing
    for code, doing in (
        (dispatch.run.__code__, "op"),
        (autograd.run_engine.__code__, "backward"),
    )
}
_nccl = importlib.util.find_spec("allranks.backends.nccl")
NCCL = f"{Path(_nccl.origin).parent.as_posix()}/"


def whose(code: CodeType) -> tuple[str, str]:
    """Return whose a function is, and what torch does in it ("" for nothing special).

    Returns:
        "reader", "torch" or "ours" (which stands for all other packages, too), and one
        of "backward", "step", "collective", "op".
    """
    return _whose(code.co_filename, code.co_name)


@cache  # not by the code, since that is equal to a copy's in another file
def _whose(path: str, name: str) -> tuple[str, str]:
    path, doing = path.replace("\\", "/"), DOING.get((path, name), "")
    if path.startswith(HERE):
        return OURS, "collective" if path.startswith(NCCL) else doing
    if path.startswith(TORCHS):
        file = path.removeprefix(TORCHS)
        if file in PLUMBING:
            return OURS, ""
        if (file, name) in FLATTEN:
            return TORCH, "collective"
        return TORCH, "step" if file.startswith("optim/") else ""
    return (OURS if is_package(path) else READER), ""


def is_package(path: str) -> bool:
    """Tell whether a file is of Python's library, or was installed."""
    foreign = path.startswith(LIBRARY) or any(part in path for part in PACKAGES)
    return foreign or path.endswith(DECORATORS)


class Place(NamedTuple):
    """Where in the reader's code a call comes from.

    Attributes:
        line: as "project/train.py:31"; "" if no code of the reader's is running.
        doing: what torch is doing, of "backward", "step", "collective" and "op".
        direct: whether the line asked for it, and not a function of torch that it
            calls.
    """

    line: str
    doing: frozenset[str]
    direct: bool


def place() -> Place:
    """Return the reader's innermost line, what is going on, and who asked for it."""
    frame, line, doing, direct = sys._getframe(1), "", set(), True
    # From the innermost frame outwards. The first one of the reader's is the line; what
    # is outside of it still counts for doing, as backward may call a reader's hook.
    while frame is not None:
        owner, what = whose(frame.f_code)
        if what:
            doing.add(what)
        if not line:
            if owner == READER:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            elif owner == TORCH:
                direct = False
        frame = frame.f_back
    return Place(line, frozenset(doing), direct)


def standing() -> str:
    """Return the reader's line at which the main thread stands; "" outside of it."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        if whose(frame.f_code)[0] == READER:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def short(line: str) -> str:
    """Return a line with its file's name alone.

    >>> short("project/train.py:31")
    'train.py:31'
    """
    return line.rpartition("/")[2]
