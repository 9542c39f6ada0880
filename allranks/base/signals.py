"""Signals that a program handles for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handling(number: signal.Signals, handler: Callable[..., None]) -> Iterator[None]:
    """Handle a signal by a function during a block, and as before after it.

    Python calls handlers in the main thread; in another one, nothing changes.

    Args:
        number: such as ``signal.SIGTERM``.
        handler: called with the signal's number and the frame that it interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        if before is not None:  # else something other than Python has set it
            signal.signal(number, before)
