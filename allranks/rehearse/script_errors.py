"""The error that ends a script: its traceback, its tensors, and what to do about it.

A traceback is printed as the script has it: no frame of ours, and each one once.

A tensor that met others on another device is named with the line that made it. On a GPU
it is known by its storage, and a parameter by its module. Another one on the host is
known by its name in the reader's own code, if one statement alone gives it that name.
If there are several, nothing is said.

Advice is given where a real GPU would have raised no error. Nothing is put in the place
of packages that only run on one, because many scripts ask whether such a package is
there and do without it. Virtual GPUs keep what they hold in the laptop's memory, which
may end before theirs.
"""

import ast
import functools
import hashlib
import inspect
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

import torch

from allranks.rehearse import lines, records
from allranks.rehearse.memory import Holders, storage_key
from allranks.rehearse.records import Failure, TensorOrigin

GPU_PACKAGES = {
    "apex",
    "bitsandbytes",
    "causal_conv1d",
    "cupy",
    "deep_ep",
    "flash_attn",
    "flash_attn_interface",
    "mamba_ssm",
    "pycuda",
    "tensorrt",
    "torch_tensorrt",
    "transformer_engine",
    "triton",
    "xformers",
}
COMPILER = "torch.utils.cpp_extension"
COMPILES = ("cuda", "nvcc")  # words by which its error tells that it wanted a GPU's
HOST_MEMORY_FULL = "DefaultCPUAllocator: can't allocate memory"  # torch's words
HOST_MEMORY_CURE = (
    "virtual GPUs keep what they hold in it, so rehearse with fewer ranks, or with a "
    "smaller model or batch"
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
FRAME = re.compile(
    r'^ *File "(?P<path>[^"]+)", line \d+, in [^\n]*\n(?: {4,}[^\n]*\n)*', re.M
)
FRAMES = re.compile(f"(?:{FRAME.pattern.replace('?P<path>', '?:')})+", re.M)
STARTERS = "<frozen runpy>", "multiprocessing/process.py", "multiprocessing/spawn.py"
MOST_FRAMES = 2  # frames of packages in a row that are all shown


def describe(error: BaseException, holders: Holders | None) -> Failure:
    """Return what a record has of an error; advice is added to the error itself, too.

    Args:
        error: that ends the script.
        holders: which know the lines that made storages; None if nobody records.
    """
    remedy = advice(error)
    if remedy:
        error.add_note(f"rehearsal: {remedy}")
    own = [  # the reader's lines, from the outermost to the one that failed
        f"{frame.f_code.co_filename}:{number}"
        for frame, number in traceback.walk_tb(error.__traceback__)
        if lines.whose(frame.f_code)[0] == lines.READER
    ]
    return Failure(
        type=type(error).__name__,
        text=f"{error}: {remedy}" if remedy else str(error),
        line=own[-1] if own else "",
        log="".join(traceback.format_exception(error)),
        tensors=of_tensors(error, holders) if holders is not None else [],
    )


# Where a tensor comes from


def of_tensors(error: BaseException, holders: Holders) -> list[TensorOrigin]:
    """Return where each tensor comes from that an error is about.

    Args:
        error: with the attribute ``tensors``, if it is about tensors.
        holders: which know the lines that made storages and modules.
    """
    origins = []
    for tensor in getattr(error, "tensors", ()):
        name, line = _of_module(tensor, holders)
        if not line:
            name, line = _of_name(tensor, error.__traceback__)
        line = holders.places.get(storage_key(tensor), (line,))[0]
        origins.append(TensorOrigin(str(tensor.device), name, line))
    return origins


def _of_module(tensor: torch.Tensor, holders: Holders) -> tuple[str, str]:
    """Return the name of a parameter or buffer, and the line that made its module."""
    for module, line in tuple(holders.modules.items()):
        for name, own in (*module._parameters.items(), *module._buffers.items()):
            if own is tensor:
                return f"{type(module).__name__}.{name}", line
    return "", ""


def _of_name(tensor: torch.Tensor, trace: TracebackType | None) -> tuple[str, str]:
    """Return the reader's name of a tensor, and the only line that binds it, or "".

    The innermost function of the reader's may have been given it, and then the line is
    in one of those that called it.
    """
    frames = []
    while trace is not None:
        if lines.whose(trace.tb_frame.f_code)[0] == lines.READER:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    first = ""
    for frame in reversed(frames):
        for name in _names(tensor, frame):
            first = first or name
            numbers = set(_bindings(frame, name))
            if len(numbers) == 1:
                return first, f"{frame.f_code.co_filename}:{numbers.pop()}"
    return first, ""


def _names(tensor: torch.Tensor, frame: FrameType) -> Iterator[str]:
    """Yield a tensor's names in a frame: a variable's, or an attribute's of one."""
    for name, value in frame.f_locals.items():
        if value is tensor:
            yield name
        elif not isinstance(value, torch.Tensor):
            attributes = getattr(value, "__dict__", {}).items()
            yield from (f"{name}.{key}" for key, own in attributes if own is tensor)


def _bindings(frame: FrameType, name: str) -> Iterator[int]:
    """Yield the lines that bind a name: of a frame's function, or of the whole file.

    Arguments are bound by the caller. An attribute may be bound anywhere in the file.
    """
    try:
        tree: Any = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return
    _, dot, attribute = name.rpartition(".")
    if dot:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == attribute:
                yield from _stored(node)
        return
    scope = _scope(tree, frame)
    rest = list(ast.iter_child_nodes(scope)) if scope is not None else []
    while rest:
        node = rest.pop()
        if isinstance(node, ast.Name) and node.id == name:
            yield from _stored(node)
        elif not isinstance(node, SCOPES):
            rest += ast.iter_child_nodes(node)


def _stored(node: ast.Name | ast.Attribute) -> Iterator[int]:
    if isinstance(node.ctx, ast.Store):
        yield node.lineno


def _scope(tree: ast.Module, frame: FrameType) -> ast.AST | None:
    """Return the function or module that a frame runs; None if it is not found."""
    if frame.f_code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        first = getattr(node, "decorator_list", None) or [node]
        number = getattr(first[0], "lineno", 0)
        if isinstance(node, SCOPES[:2]) and number == frame.f_code.co_firstlineno:
            return node
    return None


# What to do about it


def advice(error: BaseException) -> str:
    """Say in one sentence what to do about an error that a real GPU would not cause.

    Args:
        error: that ends the reader's script.

    Returns:
        The sentence, or "" for any other error.

    >>> advice(ModuleNotFoundError("No module named 'apex'", name="apex.parallel"))[:32]
    'import apex.parallel is made for'
    """
    name = getattr(error, "name", None) or ""
    if isinstance(error, ImportError) and name.partition(".")[0] in GPU_PACKAGES:
        return _sentence(f"import {name}", name.partition(".")[0])
    # The outermost frame of such a package is what the script has called.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        package, call = module.partition(".")[0], f"{module}.{frame.f_code.co_name}"
        if package in GPU_PACKAGES:
            return _sentence(call, package)
        if module == COMPILER and any(word in str(error).lower() for word in COMPILES):
            return (
                f"{call} compiles for a real GPU, so it cannot be rehearsed: let a "
                "module of your own call it, and give a stand-in for that module, "
                "--stub MODULE=FILE"
            )
    if HOST_MEMORY_FULL in str(error) or isinstance(error, MemoryError):
        return f"this machine's memory is full, not a GPU's: {HOST_MEMORY_CURE}"
    return ""


def _sentence(call: str, package: str) -> str:
    if package in sys.modules and call.startswith("import "):  # a part has no stand-in
        package = call.removeprefix("import ")
    return (
        f"{call} is made for GPUs, so it is not rehearsed: give a file that has "
        f"stand-ins for what you use of it, --stub {package}=FILE"
    )


def refuse_cuda(module: ModuleType) -> None:
    """Let ``load`` and ``load_inline`` raise for a source in CUDA, before all else.

    Otherwise torch's compiler of extensions would run the machine's nvcc for minutes,
    in order to fail, and leave a lock if it is ended meanwhile.
    """
    compile_own = module._jit_compile

    @functools.wraps(compile_own)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(compile_own).bind(*args, **kwargs).arguments
        sources = given["sources"]
        sources = [sources] if isinstance(sources, str) else sources
        cuda = [path for path in sources if module._is_cuda_file(str(path))]
        if cuda or given.get("with_cuda"):
            what = str(cuda[0]) if cuda else "with_cuda=True"
            raise NotImplementedError(f"{what} is for CUDA, and nvcc is not started")
        return compile_own(*args, **kwargs)

    module._jit_compile = compiled


# How it is printed


def shorten(text: str) -> str:
    """Leave out our frames of a text with tracebacks, and most of a package's row."""
    return FRAMES.sub(lambda frames: _shorter(frames[0]), text)


def _shorter(text: str) -> str:
    """Return frames without ours; of packages' frames in a row, the ends."""
    parts, row = [], []
    for frame in FRAME.finditer(text):
        path = frame["path"].replace("\\", "/")
        if path.startswith(lines.HERE) or path.endswith(STARTERS):
            continue
        if lines.is_package(path):
            row.append(frame[0])
        else:
            parts += [*_ends(row), frame[0]]
            row = []
    return "".join([*parts, *_ends(row)])


def _ends(row: list[str]) -> list[str]:
    """Return a row of frames; of a long one the first and the last."""
    left = len(row) - MOST_FRAMES
    if left <= 0:
        return row
    return [row[0], f"    ... and {left} more of packages\n", row[-1]]


def tell(error: BaseException, head: str = "") -> None:
    """Print an error's traceback, unless another rank has just printed the same.

    Args:
        error: that has ended this process.
        head: what comes before it.
    """
    text = "".join(traceback.format_exception(error))
    stage = records.stage()
    if not stage.full:
        text = shorten(text)
        if not _is_first(text, stage.folder):
            return
    rank = os.environ.get("RANK", "")
    mark = f"[rank{rank}]: " if rank else ""
    marked = "".join(f"{mark}{line}\n" for line in text.splitlines())
    print(head + marked, end="", file=sys.stderr, flush=True)


def _is_first(text: str, folder: str) -> bool:
    """Tell whether no process has printed this, whatever numbers its rank has in it."""
    # Frames keep their numbers, as another line is another failure.
    same = re.sub(
        r"(?m)^(?! *File ).*", lambda line: re.sub(r"\d+", "0", line[0]), text
    )
    name = hashlib.sha256(same.encode()).hexdigest()
    try:  # of W ranks that fail together, one alone can make the file
        Path(folder, f"{name}.printed").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone
        return True
    return True
