"""Ctrl-C and the stop button, where they have to wait for a moment."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let an interrupt wait until the block is over, and then take effect.

    A signal mask would not do: a kernel has several threads, and the system gives the
    signal to any of them that takes it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only
        return
    pressed: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *args: pressed.append(args))
    try:
        yield
    finally:
        if before is not None:  # else something other than Python has set it
            signal.signal(signal.SIGINT, before)
    if pressed and callable(before):
        before(*pressed[-1])
