"""Patches names of torch for a while, and puts back what was there."""

from collections.abc import Iterable
from typing import Any

MISSING = object()
Entry = tuple[Any, Any, Any]  # owner (or a dict), name (or key), what takes its place


def _put(owner: Any, name: str, value: Any) -> None:
    """Set a name of an object, or a key of a dict; remove it if it is MISSING."""
    if isinstance(owner, dict):
        owner.pop(name) if value is MISSING else owner.update({name: value})
    elif value is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


class Patcher:
    """Replaces names, and remembers what was there before."""

    def __init__(self) -> None:
        self._before: list[Entry] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Replace some names."""
        for owner, name, new in entries:
            # Not getattr: what was inherited is deleted again, not copied down.
            names = owner if isinstance(owner, dict) else vars(owner)
            self._before.append((owner, name, names.get(name, MISSING)))
            _put(owner, name, new)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._before:
            owner, name, old = self._before.pop()
            _put(owner, name, old)
