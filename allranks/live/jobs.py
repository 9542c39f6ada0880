"""A job: the parent packs it, a rank executes it and answers with a value or an error.

A job is a tuple, and its first entry says what to do: ``("source", text, file name,
echo, values)`` and ``("call", pickled call)`` run the reader's code, while ``("push",
file of pickled values)`` and ``("pull", name)`` move variables. The others are
questions of the engine itself (see ``worker``).
"""

import ast
import asyncio
import contextlib
import functools
import inspect
import io
import linecache
import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
from IPython.core.displayhook import DisplayHook
from IPython.core.inputtransformer2 import TransformerManager

from allranks.base.report import is_user_code

# So that a cell may await, as cells of a notebook may.
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
NOT_OURS = ("pinfo", "pinfo2", "matplotlib")  # line magics that a rank understands


def source(text: str, filename: str, echo: bool, values: bool) -> tuple:
    """Pack a cell as a job, after checking its syntax.

    It is checked here, in the parent, because a typo then costs the ranks nothing.

    Args:
        text: the cell's source; lines such as ``!ls`` and ``x?`` are translated.
        filename: the name that tracebacks give it.
        echo: whether a rank shows the value of the last expression.
        values: whether a rank sends that value back.

    Raises:
        SyntaxError: if the text is not Python.
        ValueError: if it uses a magic that only the kernel has.
    """
    try:
        _compile(text, filename)
    except SyntaxError as error:
        text = _translated(text, filename, error)
    return "source", text, filename, echo, values


def call(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple:
    """Pack a call as a job, by value, so that the ranks run the caller's current code.

    Args:
        fn: the function; the module that it comes from is sent by value as well, unless
            it is an installed one.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = sys.modules.get(getattr(inner, "__module__", None))
    path = getattr(module, "__file__", None)
    if path is None or not is_user_code(path):
        return "call", cloudpickle.dumps((fn, args, kwargs))
    cloudpickle.register_pickle_by_value(module)
    try:
        return "call", cloudpickle.dumps((fn, args, kwargs))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def is_code(job: tuple) -> bool:
    """Tell whether a job is the reader's code, which may print and communicate."""
    return job[0] in ("source", "call")


def execute(job: tuple, namespace: dict, show: Callable[[Any], None]) -> bytes:
    """Run a job in the namespace of the cells; return the pickled value.

    Args:
        job: what the parent packed.
        namespace: of the cells.
        show: what shows a cell's last value.

    Raises:
        TypeError: if the value cannot be pickled.
    """
    if job[0] == "call":
        fn, args, kwargs = cloudpickle.loads(job[1])
        return pack(fn(*args, **kwargs))
    _, source, filename, echo, values = job
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    tree, last = ast.parse(source, filename), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    _run(_compile(tree, filename), namespace)
    value = _run(_compile(last, filename, "eval"), namespace) if last else None
    if echo and value is not None and not _is_hushed(source):
        show(value)
    return pack(value if values else None)


def move(job: tuple, namespace: dict) -> bytes:
    """Set variables in the namespace of the cells, or return one, pickled.

    Raises:
        NameError: if a variable to be pulled does not exist.
        TypeError: if it cannot be pickled.
    """
    what, told = job
    if what == "push":
        with open(told, "rb") as file:
            namespace.update(cloudpickle.load(file))
        return pack(None)
    if told not in namespace:
        raise NameError(f"name {told!r} is not defined")
    return pack(namespace[told])


def pack(value: Any) -> bytes:
    """Pickle a value that is to leave its rank.

    Raises:
        TypeError: if that is impossible; the sentence names the value's type.
    """
    packed = io.BytesIO()
    try:
        _Pickler(packed).dump(value)
        return packed.getvalue()
    except Exception as e:
        kind = type(value).__name__
        raise TypeError(
            f"a result of type {kind} cannot leave its rank ({e}); "
            "return numbers, tensors, or lists and dicts of them"
        ) from None


class _Pickler(cloudpickle.Pickler):
    """Refuse what is only a part of something on all ranks."""

    def reducer_override(self, value: Any) -> Any:
        """Raise for a DTensor, also for one within a list or a dict."""
        if type(value).__name__ == "DTensor":
            raise TypeError(
                "a DTensor needs its ranks: take its to_local() or its full_tensor()"
            )
        return super().reducer_override(value)


def unpack(packed: bytes) -> Any:
    """Return a value that a rank has packed.

    Raises:
        ValueError: if it is on a GPU that only the rank has, a virtual one.
    """
    try:
        return cloudpickle.loads(packed)
    except RuntimeError as error:
        if "deserialize object on a CUDA device" not in str(error):
            raise
        raise ValueError(
            "the value is on a GPU that only its rank has: bring it with .cpu()"
        ) from None


def are_equal(a: Any, b: Any) -> bool:
    """Tell whether values of two ranks are equal, also if they are or contain tensors.

    Values whose comparison fails or is undecided count as different. NaN is equal to
    itself here, because ranks that agree on NaN agree.
    """
    import torch

    if type(a) is not type(b):
        return False
    match a:
        case torch.Tensor():
            try:
                return _same_tensors(a, b)
            except (RuntimeError, NotImplementedError):  # of a layout without equality
                return False
        case dict():
            return list(a) == list(b) and all(are_equal(a[key], b[key]) for key in a)
        case list() | tuple():
            return len(a) == len(b) and all(map(are_equal, a, b))
    try:
        return bool(a == b) or bool(a != a and b != b)
    except Exception:  # an array says neither yes nor no
        return _equal_arrays(a, b)


def _same_tensors(a: Any, b: Any) -> bool:
    import torch

    if a.is_nested and b.is_nested:
        return are_equal(a.unbind(), b.unbind())
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.layout != b.layout:
        return False
    if a.layout is torch.sparse_coo:
        a, b = a.coalesce(), b.coalesce()
        return are_equal(a.indices(), b.indices()) and are_equal(a.values(), b.values())
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    nan = a.is_floating_point() or a.is_complex()
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=nan)


def _equal_arrays(a: Any, b: Any) -> bool:
    try:
        return a.shape == b.shape and bool((a == b).all())
    except Exception:
        return False


def describe(error: BaseException) -> str:
    """Return the traceback as Python prints it, with the reader's own frames only."""
    summary = traceback.TracebackException.from_exception(error)
    part = summary
    while part is not None:
        part.stack[:] = [f for f in part.stack if is_user_code(f.filename)]
        for frame in part.stack:
            frame.colno = None  # no ^^^^ marks, which differ between Python versions
        part = part.__cause__ or part.__context__
    return "".join(summary.format()).rstrip()


def _compile(code: str | ast.AST, filename: str, mode: str = "exec") -> CodeType:
    return compile(code, filename, mode, flags=FLAGS, dont_inherit=True)


def _run(code: CodeType, namespace: dict) -> Any:
    """Run compiled code, in the rank's event loop if it awaits something."""
    value = eval(code, namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        try:
            loop = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:  # the first cell that awaits
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        value = loop.run_until_complete(value)
    return value


def awaited() -> list[tuple[str, int]]:
    """Return the file and line of each coroutine in which the cell waits, inner first.

    Nothing is returned unless this thread's event loop runs a cell.
    """
    with contextlib.suppress(RuntimeError):
        for task in asyncio.all_tasks(asyncio.get_running_loop()):
            places, coroutine = [], task.get_coro()
            main = getattr(coroutine, "cr_code", None)
            while frame := getattr(coroutine, "cr_frame", None):
                places.insert(0, (frame.f_code.co_filename, frame.f_lineno))
                coroutine = coroutine.cr_await
            if main is not None and main.co_name == "<module>":
                return places
    return []


def _is_hushed(source: str) -> bool:
    """Tell whether a cell ends with a semicolon, after which nothing is shown."""
    if ";" not in source:
        return False
    return DisplayHook.semicolon_at_end_of_expression(source)


def _translated(text: str, filename: str, error: SyntaxError) -> str:
    """Return a cell with ``!cmd`` and ``x?`` as Python, if that is what was wrong."""
    # IPython would drop the empty lines before a cell, and line numbers with them.
    empty = text[: len(text) - len(text.lstrip("\n"))]
    translated = empty + TransformerManager().transform_cell(text[len(empty) :])
    try:
        tree = _compile(translated, filename, "exec") and ast.parse(translated)
    except SyntaxError:
        tree = None
    if tree is None or translated.rstrip() == text.rstrip():
        raise error.with_traceback(None) from None
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="run_line_magic" | "run_cell_magic"),
                args=[ast.Constant(value=str(name)), *_],
            ) if name not in NOT_OURS:
                raise ValueError(
                    f"%{name} is a magic of the kernel, and ranks have none: use it in "
                    "a cell without %%ranks, or write what it does in Python"
                )
    return translated
