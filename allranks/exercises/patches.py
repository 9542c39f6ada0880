"""Let a check watch a function under whatever name the answer calls it.

After ``from os import replace``, a name in the reader's cell refers to ``os.replace``
itself, so it would miss what a check puts into ``os`` later. A check therefore calls
``patch(os, "replace", spy)``, which updates the answer's own names too.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

from allranks.exercises.oracle import Wrong

_TALK = "all_ batch_ broadcast gather irecv isend recv reduce scatter send"


def communications(allowed: str) -> list[str]:
    """List the functions of ``torch.distributed`` that move data.

    Args:
        allowed: those to leave out, separated by spaces.
    """
    import torch.distributed as dist

    starts = tuple(_TALK.split())
    found = (name for name in dir(dist) if name.strip("_").startswith(starts))
    kept = (name for name in found if inspect.isfunction(getattr(dist, name)))
    return [name for name in kept if name not in allowed.split()]


def only_functions(patch: Callable) -> None:
    """Refuse collectives that an answer calls past ``torch.distributed``'s functions.

    A check watches these functions. The methods of a group that they call, and torch's
    functional collectives, would do the same unwatched.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    inside = os.path.dirname(torch.__file__), os.path.dirname(__file__), "<frozen check"

    def watched(owner: Any, name: str) -> Callable:
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            # torch's own functions end in these methods, so what counts is who calls
            # them.
            if not sys._getframe(1).f_code.co_filename.startswith(inside):
                where = owner.__name__.rpartition(".")[2]
                why = f"it calls {where}.{name}"
                raise Wrong(f"{why}; use the functions of torch.distributed.")
            return real(*args, **kwargs)

        return call

    for owner in dist.ProcessGroup, torch._C._distributed_c10d.Backend, functional:
        for name in dir(owner):
            talks = name.strip("_").startswith(("all", "barrier", *_TALK.split()))
            if talks and inspect.isroutine(getattr(owner, name)):
                patch(owner, name, watched(owner, name))


class Patches:
    """The functions that a check has replaced, and by what."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, str], list] = {}  # all values, newest last
        self._held: dict[int, list] = {}  # the slot of each value, by the value's id
        self._answer: Callable | None = None

    def patch(self, owner: Any, name: str, new: Any) -> None:
        """Replace ``owner.name`` by ``new``, for the answer too."""
        slot = self._slots.setdefault((id(owner), name), [getattr(owner, name)])
        slot.append(new)
        for value in slot[0], new:  # the slot keeps both, so no other gets their ids
            self._held.setdefault(id(value), slot)
        setattr(owner, name, new)
        self._rebind()

    def spy(self, owner: Any, names: str, note: Callable) -> None:
        """Call ``note`` with the arguments before each call of some functions.

        Args:
            owner: a module or a class; what it does not have is left out.
            names: of its functions, separated by spaces.
            note: may raise Wrong.
        """

        def noted(real: Callable) -> Callable:
            @functools.wraps(real)
            def call(*args: Any, **kwargs: Any) -> Any:
                note(*args, **kwargs)
                return real(*args, **kwargs)

            return call

        for name in names.split():
            if hasattr(owner, name):
                self.patch(owner, name, noted(getattr(owner, name)))

    def forbid(
        self, owner: Any, names: Iterable[str], why: str, what: str = "{}"
    ) -> None:
        """Refuse calls of some functions: "it calls gather; all_reduce is enough.".

        Args:
            owner: a module or a class.
            names: of its functions.
            why: how the sentence ends.
            what: says what is called, with the name in place of {}.
        """

        def refuse(name: str, *args: Any, **kwargs: Any) -> None:
            raise Wrong(f"it calls {what.format(name)}; {why}")

        for name in names:
            self.patch(owner, name, functools.partial(refuse, name))

    def only(self, allowed: str, why: str) -> None:
        """Refuse all that moves data, but for the functions allowed."""
        import torch.distributed as dist

        self.forbid(dist, communications(allowed), why)

    def follow(self, answer: Callable) -> Callable:
        """Return the answer as a function that updates its names at each call."""
        self._answer = answer

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._rebind()
            return answer(*args, **kwargs)

        return call

    def _rebind(self) -> None:
        """Update the answer's names, and those of what it refers to."""
        seen, waiting = set(), [self._answer]
        while waiting and self._slots:
            thing = waiting.pop()
            if id(thing) in seen or not _is_readers(thing):
                continue
            seen.add(id(thing))
            for value, put in _names(thing):
                kind = type(value)
                held = kind in (staticmethod, classmethod)
                value = value.__func__ if held else value
                slot = self._held.get(id(value))
                if slot is None:
                    waiting += [value, kind]
                elif value is not slot[-1]:  # the check's own code is not changed
                    put(kind(slot[-1]) if held else slot[-1])


def _is_readers(thing: Any) -> bool:
    """Tell whether a function or class was sent by value, so that no module has it."""
    if not isinstance(thing, (FunctionType, type)):
        return False
    module = sys.modules.get(thing.__module__)
    if isinstance(thing, FunctionType):
        return thing.__globals__ is not getattr(module, "__dict__", None)
    return getattr(module, thing.__qualname__, None) is not thing


def _names(thing: FunctionType | type) -> Iterator[tuple[Any, Callable]]:
    """Yield what a function or class refers to, and a function that replaces it."""
    if isinstance(thing, type):
        for name, value in list(vars(thing).items()):
            yield value, functools.partial(setattr, thing, name)
        for base in thing.__bases__:
            yield base, _nowhere
        return
    for name, value in list(thing.__globals__.items()):
        yield value, functools.partial(thing.__globals__.__setitem__, name)
    for cell in thing.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        yield value, functools.partial(setattr, cell, "cell_contents")
    for i, value in enumerate(thing.__defaults__ or ()):
        yield value, functools.partial(_put_default, thing, i)


def _put_default(function: FunctionType, place: int, value: Any) -> None:
    """Replace one default of a function."""
    defaults = list(function.__defaults__)
    defaults[place] = value
    function.__defaults__ = tuple(defaults)


def _nowhere(value: Any) -> None:
    """Replace nothing, because a base class stays."""
