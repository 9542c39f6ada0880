"""What the script saves: by which line, to which file, and under which keys."""

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from allranks.rehearse import lines

WRAPPER = "module."  # with which DDP and DataParallel begin each key


class Saved:
    """Follows ``torch.save`` from now on."""

    def __init__(self) -> None:
        self.forget()
        save, saved = torch.save, self

        @functools.wraps(save)
        def noted(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            saved.note(obj, f)
            return save(obj, f, *args, **kwargs)

        torch.save = noted

    def forget(self) -> None:
        """Begin anew, as a process does that was forked."""
        self.files: dict[tuple[str, str], bool] = {}

    def note(self, obj: Any, file: Any) -> None:
        """Note a file, and whether a state dict in it has a wrapper's keys."""
        name = getattr(file, "name", file)  # of an open file, or a path
        known = isinstance(name, (str, os.PathLike))
        path = os.path.realpath(name) if known else ""
        if path.startswith("/dev/"):
            return
        key = lines.place()[0], path
        wrapped = any(map(_is_wrapped, (obj, *_inside(obj))))
        self.files[key] = self.files.get(key, False) or wrapped

    def facts(self) -> list[list[Any]]:
        """Return line, path ("" if it is no file), and whether keys are a wrapper's."""
        return [[*key, wrapped] for key, wrapped in self.files.items()]


def _inside(obj: Any) -> Iterator[Any]:
    """Yield what a checkpoint has beside numbers: state dicts, by name."""
    yield from obj.values() if isinstance(obj, Mapping) else ()


def _is_wrapped(obj: Any) -> bool:
    """Tell whether all tensors of a state dict have the keys of a wrapper."""
    if not isinstance(obj, Mapping):
        return False
    keys = [key for key, value in obj.items() if torch.is_tensor(value)]
    return bool(keys) and all(str(key).startswith(WRAPPER) for key in keys)
