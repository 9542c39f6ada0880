"""Ctrl-C and the stop button, where they have to wait for a moment."""

import contextlib
import signal
from collections.abc import Iterator

from allranks.base.signals import handling


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt wait until the block is over, and then take effect.

    A signal mask would not do: a kernel has several threads, and the system gives the
    signal to any of them that takes it.
    """
    pressed: list[tuple] = []
    before = signal.getsignal(signal.SIGINT)
    with handling(signal.SIGINT, lambda *args: pressed.append(args)):
        yield
    if pressed and callable(before):
        before(*pressed[-1])
