"""Which line made a tensor that met others on another device, when that ends a script.

A tensor on a GPU is known by its storage, and a parameter by its module. Another one on
the host is known by its name in the reader's own code, if one statement alone gives it
that name. If there are several, nothing is said.
"""

import ast
import linecache
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

from allranks.rehearse import lines
from allranks.rehearse.memory import Holders, storage_key
from allranks.rehearse.records import TensorOrigin

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


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
            held = getattr(value, "__dict__", {}).items()
            yield from (f"{name}.{key}" for key, own in held if own is tensor)


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
