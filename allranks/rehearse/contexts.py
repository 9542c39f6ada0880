"""Finds ``torch.accelerator.device_index(1)`` that nobody enters: it does nothing."""

import functools
import weakref
from collections import Counter
from typing import Any

import torch

from allranks.rehearse.lines import place

_lost: Counter = Counter()
WATCHED = [
    (torch.accelerator.device_index, "torch.accelerator.device_index"),
    (torch.cuda.device, "torch.cuda.device"),
]


def lines() -> list[list]:
    """Return what was made and never entered: name, line, times."""
    return [[*key, times] for key, times in _lost.items() if times > 0]


def watch() -> None:
    """Watch all objects that are made from now on."""
    for cls, name in WATCHED:
        _watch(cls, name)


def _watch(cls: type, name: str) -> None:
    init, enter = cls.__init__, cls.__enter__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        line, _, direct = place()
        if type(self) is cls and direct and line:
            key = name, line
            self._end = weakref.finalize(self, _lost.update, {key: 1})
            self._end.atexit = True

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        if (end := getattr(self, "_end", None)) is not None:
            end.detach()
        return enter(self)

    cls.__init__, cls.__enter__ = __init__, __enter__
