"""Where in the reader's own code something happens, and what torch was doing."""

import sys
import sysconfig
import threading
from functools import cache
from pathlib import Path
from types import CodeType

HERE = str(Path(__file__).parents[1])
LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
FOREIGN = (HERE, "<", *LIBRARIES)
READER, TORCH, OURS = "reader", "torch", "ours"
# torch's files on the way from the reader's .item(), .cpu() or print to the device
PLUMBING = ("_tensor.py", "_tensor_str.py", "/torch/_ops.py", "/torch/utils/_pytree.py")
PLUMBING += ("/torch/autograd/function.py",)


@cache
def whose(code: CodeType) -> tuple[str, str]:
    """Return whose a function is, and what torch does in it ("" for nothing special).

    Returns:
        "reader", "torch" or "ours" (which stands for the standard library, too), and
        one of "backward", "step", "collective", "op".
    """
    path = code.co_filename.replace("\\", "/")
    if f"{HERE}/backends/nccl" in path:
        return OURS, "collective"
    if path.startswith(HERE):
        doing = {
            ("dispatch.py", "run"): "op",
            ("autograd.py", "run_engine"): "backward",
        }
        return OURS, doing.get((path.rpartition("/")[2], code.co_name), "")
    if path.endswith("/typing_extensions.py"):  # torch's decorators, wherever it lies
        return OURS, ""
    if "/torch/" in path and not path.endswith(PLUMBING):
        return TORCH, "step" if "/torch/optim/" in path else ""
    return (OURS if path.startswith(FOREIGN) else READER), ""


def place() -> tuple[str, frozenset[str], bool]:
    """Return the reader's innermost line, what is going on, and who asked for it.

    Returns:
        The line as "train.py:31" ("" if no code of the reader's is running), the
        things that torch is doing, and whether the reader's line asked directly, and
        not a function of torch that the line calls.
    """
    frame, line, doing, direct = sys._getframe(1), "", set(), True
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
    return line, frozenset(doing), direct


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
