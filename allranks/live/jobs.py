"""A job: the parent packs it, a rank executes it and answers with a value or an error.

A job is ``(pickled call,)`` or ``(source text, file name, echo, values)``.
"""

import ast
import linecache
import sys
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from allranks.report import is_user_code


def source(text: str, filename: str, echo: bool, values: bool) -> tuple:
    """Pack a cell as a job, after checking its syntax.

    It is checked here, in the parent, because a typo then costs the ranks nothing.

    Args:
        text: the cell's source.
        filename: the name that tracebacks give it.
        echo: whether a rank prints the value of the last expression.
        values: whether a rank sends that value back.

    Raises:
        SyntaxError: if the text is not Python.
    """
    compile(text, filename, "exec")
    return text, filename, echo, values


def call(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes]:
    """Pack a call as a job, by value, so that the ranks run the caller's current code.

    Args:
        fn: the function; the module that it comes from is sent by value as well, unless
            it is an installed one.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    module = sys.modules.get(getattr(fn, "__module__", None))
    path = getattr(module, "__file__", None)
    if path is None or "site-packages" in path:
        return (cloudpickle.dumps((fn, args, kwargs)),)
    cloudpickle.register_pickle_by_value(module)
    try:
        return (cloudpickle.dumps((fn, args, kwargs)),)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def execute(job: tuple, namespace: dict) -> bytes:
    """Run a job in the namespace of the cells; return the pickled value.

    Raises:
        TypeError: if the value cannot be pickled.
    """
    if len(job) == 1:
        fn, args, kwargs = cloudpickle.loads(job[0])
        return _pickle(fn(*args, **kwargs))
    source, filename, echo, values = job
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    tree, last = ast.parse(source, filename), None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    exec(compile(tree, filename, "exec"), namespace)
    value = eval(compile(last, filename, "eval"), namespace) if last else None
    if echo and value is not None:
        print(repr(value))
    return _pickle(value if values else None)


def _pickle(value: Any) -> bytes:
    try:
        return cloudpickle.dumps(value)
    except Exception as e:
        kind = type(value).__name__
        raise TypeError(
            f"a result of type {kind} cannot leave its rank ({e}); "
            "return numbers, tensors, or lists and dicts of them"
        ) from None


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
