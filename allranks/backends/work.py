"""Work that our backends hand out, and the threads that complete it."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

RUNNING: set[int] = set()  # the threads that complete something just now


class FutureWork(Work):
    """Work that ends when its future does; unlike torch's own, it raises its error.

    Args:
        future: gets the result, or the error.
        source: the rank that a message comes from.
    """

    def __init__(self, future: torch.futures.Future, source: int | None = None) -> None:
        super().__init__()
        self._future, self._source = future, source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end; without a timeout above 0, the group's holds."""
        seconds = timeout.total_seconds() if timeout else 0
        until = time.monotonic() + seconds
        while seconds > 0 and not self._future.done():
            if time.monotonic() > until:
                raise RuntimeError(f"the work is not done after {seconds:g} s")
            time.sleep(1e-3)
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future:
        """Return the future with the result, which DDP waits for."""
        return self._future

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it has filled."""
        return self._future.wait()

    def source_rank(self) -> int:
        """Return which rank a message came from."""
        if self._source is None:
            raise RuntimeError("only what receives a message has a source rank")
        return self._source


def done(result: list[torch.Tensor]) -> Work:
    """Return work that has ended, with its result."""
    future = torch.futures.Future()
    future.set_result(result)
    return FutureWork(future)


class Ending(torch.futures.Future):
    """A future whose callbacks run in the thread that ends it, however late they come.

    Torch's own runs a callback where it is added if the work has ended by then. A rank
    that is quicker would then call what the callback calls in its program, and another
    rank in a callback: they would not meet.
    """

    def __init__(
        self, ends: queue.SimpleQueue, in_callback: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._ends, self._in_callback = ends, in_callback

    def then(self, callback: Callable) -> torch.futures.Future:
        """Return the future of what the callback will return."""
        if self._in_callback():
            return super().then(callback)
        later = Ending(self._ends, self._in_callback)

        def run(ended: torch.futures.Future) -> None:
            try:
                later.set_result(callback(ended))
            except Exception as error:
                later.set_exception(error)

        add = super().add_done_callback
        self._ends.put(lambda: add(run))
        return later


class InOrder:
    """Calls of a group, which a thread makes in the order in which they came.

    Their futures end in a second thread, because a callback of theirs may wait for a
    later call. Both threads begin with the first call, and end when nobody has this
    object any more.
    """

    def __init__(self, name: str) -> None:
        self.pending = 0  # calls that have not ended
        self._name, self._lock = name, threading.Lock()
        self._calls: queue.SimpleQueue | None = None
        self._ending: threading.Thread | None = None

    def in_callback(self) -> bool:
        """Tell whether a callback of some work of this group is running here."""
        return threading.current_thread() is self._ending

    def put(self, call: Callable[[], None], result: list[torch.Tensor]) -> Work:
        """Return work that ends with ``result`` when ``call`` has had its turn."""

        def turn() -> None:
            error = None
            try:
                call()
            except Exception as raised:
                error = raised
            with self._lock:
                self.pending -= 1
            self._ends.put(lambda: settle(future, result, error))

        with self._lock:
            self.pending += 1
            if self._calls is None:
                self._calls, self._ends = queue.SimpleQueue(), queue.SimpleQueue()
                in_thread(make_calls, self._calls, name=self._name)
                self._ending = in_thread(make_calls, self._ends)
                for calls in self._calls, self._ends:
                    weakref.finalize(self, calls.put, None)
            ending = self._ending  # not self, which would live as long as a future
            future = Ending(self._ends, lambda: threading.current_thread() is ending)
            self._calls.put(turn)
        return FutureWork(future)


def make_calls(calls: queue.SimpleQueue) -> None:
    """Make one call after the other; None ends it."""
    here = threading.get_ident()
    RUNNING.discard(here)  # it waits, and is no reason for an exit to wait
    while (call := calls.get()) is not None:
        RUNNING.add(here)
        call()
        del call  # or it would keep its group alive
        RUNNING.discard(here)


def alone(
    call: Callable[[], None], result: list[torch.Tensor], source: int | None = None
) -> Work:
    """Make a call in a thread of its own; return work that ends when it returns."""
    future = torch.futures.Future()

    def run() -> None:
        error = None
        try:
            call()
        except Exception as raised:
            error = raised
        settle(future, result, error)

    in_thread(run)
    return FutureWork(future, source)


def settle(future: torch.futures.Future, result: list, error: Exception | None) -> None:
    """End a future, which runs its callbacks."""
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def in_thread(call: Callable, *args: Any, name: str | None = None) -> threading.Thread:
    """Make a call in a new thread, for which an exit waits a moment; return it."""

    def run() -> None:
        RUNNING.add(threading.get_ident())
        try:
            call(*args)
        finally:
            RUNNING.discard(threading.get_ident())

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


@atexit.register
def wait_for_threads() -> None:
    """Give threads a second to come back from C++.

    Python ends threads that still run when it exits, which C++ answers with an abort.
    """
    until = time.monotonic() + 1
    while RUNNING and time.monotonic() < until:
        time.sleep(0.001)
