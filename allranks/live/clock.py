"""The clock of a rank: which calls waited for other ranks, when, and for how long.

``install`` puts a timer into each function of ``torch.distributed`` that can wait, and
into ``backward``, where DDP's all-reduces hide. It changes no function's identity
wherever it can, because ``torch.compile`` and others compare functions: torch wraps
its collectives in ``_exception_logger``, and the timer replaces what that wrapper
calls. Where a release of torch lacks one of the places, nothing is timed there.

A timer costs about a microsecond, and to note a collective for the parent (``calls``)
some ten more, so the clock is always on. Only the thread of the jobs is timed.
``torch.compile`` treats a timer as it treats what is behind it, code in C++ that it
cannot look into.
"""

import contextlib
import functools
import os
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

from allranks.base.report import is_user_code
from allranks.live.calls import SIZED, UNSIZED, Recorder
from allranks.live.desync import count_inner, count_posts, failed, issued
from allranks.topics.timelines.sums import Job, Span

BACKWARD = "backward"  # what a rank is inside of; anything else is True
MOST_SPANS = 10_000  # of a job; a rank must not fill its memory with them
__all__ = ["begin", "end", "install", "issued", "spans"]
_OF_DDP = {
    "_verify_params_across_processes": "DDP()",
    "_broadcast_coalesced": "broadcast",
}
_now, _thread = time.monotonic, threading.get_ident


class _Clock:
    """What one rank has recorded since its job began."""

    __slots__ = (
        "dropped",
        "dropped_s",
        "end",
        "inside",
        "schedstat",
        "spans",
        "start",
        "thread",
    )

    def __init__(self) -> None:
        self.thread = 0
        self.inside: bool | str = False  # a timed call: don't count twice
        self.schedstat: int | None = None  # a file that tells how the thread queued
        self.start, self.end = 0.0, None
        self.spans: list[tuple] = []
        self.dropped, self.dropped_s = 0, 0.0

    def keep(self, name: str, start: float, end: float, waited: float) -> None:
        """Record a call; to be called by a timer, two frames above the caller's."""
        if len(self.spans) >= MOST_SPANS:
            self.dropped += 1
            self.dropped_s += waited
            return
        file, line = _place(sys._getframe(2))
        self.spans.append((name, start, end, line, file, waited))

    def queued(self) -> float:
        """Return the seconds that the thread was ready to run and got no core."""
        if self.schedstat is None:
            return 0.0
        return int(os.pread(self.schedstat, 64, 0).split()[1]) / 1e9


_clock = _Clock()
_is_mine: dict[str, bool] = {}  # whether a file is the reader's, by its name
_works: MutableMapping = weakref.WeakKeyDictionary()  # what to call each Work's wait
_installed: list[str] = []
_recorder: Recorder | None = None
_hidden: list[types.ModuleType] = []


def install(recorder: Recorder | None = None) -> list[str]:
    """Time the calls of this process from now on; a second call does nothing.

    Args:
        recorder: what notes them for the parent as well.

    Returns:
        The names of what is timed, because that depends on the release of torch.
    """
    global _recorder
    if _installed:
        return _installed
    import torch
    import torch.distributed as dist
    from torch.distributed import c10d_logger
    from torch.distributed import distributed_c10d as c10d

    for name, wrapper in list(vars(c10d).items()):
        is_function = type(wrapper) is types.FunctionType
        if is_function and wrapper.__code__.co_filename == c10d_logger.__file__:
            _refill(wrapper, name)
    group = dist.ProcessGroup
    _wrap(group, "send", lambda f: _timed(count_posts(f, "send"), "isend"))
    for name in "recv", "recv_anysource":
        _wrap(group, name, lambda f, n=name: _timed(count_posts(f, n), "irecv"))
    _wrap(group, "monitored_barrier", lambda f: _timed(count_inner(f)))
    _wrap(dist.Work, "wait", _timed_wait)
    for name, what in _OF_DDP.items():  # in C++: no functions, and so they remain
        _wrap(dist, name, lambda f, w=what: functools.partial(_timed(f, w)))
    with contextlib.suppress(AttributeError):
        packet = torch.ops._c10d_functional.wait_tensor
        for op in packet, packet.default:
            _wrap(op, "_op", lambda f: _timed(f, "wait_tensor", torch.Tensor))
    for module in torch.autograd, torch.autograd.graph:
        _wrap(module, "_engine_run_backward", _timed_backward)
    for name in "then", "add_done_callback":
        _wrap(torch._C.Future, name, _taking_a_callback)
    _recorder = recorder
    begin()
    return _installed


def _hide() -> None:
    """Tell ``torch.compile``, once it is there, to call a timer and not to trace it."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not _hidden:
        _hidden.append(rules)
        with contextlib.suppress(AttributeError):
            rules.add("allranks.live")


def begin() -> None:
    """Forget the spans of earlier jobs, and note that a job starts in this thread."""
    if _clock.thread != _thread():
        _clock.thread = _thread()
        if _clock.schedstat is not None:
            os.close(_clock.schedstat)
            _clock.schedstat = None
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        with contextlib.suppress(OSError):  # not on macOS, nor on every Linux
            _clock.schedstat = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    _hide()
    _clock.spans, _clock.dropped, _clock.dropped_s = [], 0, 0.0
    _clock.inside, _clock.start, _clock.end = False, _now(), None


def end() -> None:
    """Note that the job has ended."""
    _clock.end = _now()


def spans() -> Job:
    """Return what this rank has recorded since the job began."""
    ended = _now() if _clock.end is None else _clock.end
    mine = [Span(*span) for span in _clock.spans if span[1] <= ended]
    return Job(_clock.start, ended, mine, _clock.dropped, _clock.dropped_s)


def _place(frame: types.FrameType | None) -> tuple[str, int]:
    """Return the reader's file and line that a frame comes from; ("", 0) for none."""
    while frame is not None:
        file = frame.f_code.co_filename
        mine = _is_mine.get(file)
        if mine is None:
            mine = _is_mine[file] = _look(file)
        if mine:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def show_warning(
    message: Warning | str,
    category: type[Warning],
    file: str,
    line: int,
    *_more: object,
) -> None:
    """Print a warning with the reader's line, if it names a timer's instead.

    Torch counts the frames to its caller, and a timer is one more of them.
    """
    if file == __file__:
        file, line = _place(sys._getframe(1))
    sys.stderr.write(warnings.formatwarning(message, category, file, line))


def _look(file: str) -> bool:
    """Tell whether a file is the reader's own, and not code that torch generates."""
    made = file.startswith(("<eval_with_key", "<string>")) or "torchinductor_" in file
    return is_user_code(file) and not made


def _refill(wrapper: types.FunctionType, name: str) -> None:
    """Time the function that one of torch's wrappers has in its cell ``func``."""
    free = wrapper.__code__.co_freevars
    if "func" in free:
        cell = wrapper.__closure__[free.index("func")]
        cell.cell_contents = _timed(cell.cell_contents, name)
        _installed.append(name)


def _wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace an attribute of a class, a module or an operator, if it is there."""
    fn = getattr(owner, name, None)
    if fn is not None:
        with contextlib.suppress(AttributeError, TypeError):  # it cannot be replaced
            setattr(owner, name, make(fn))
            _installed.append(f"{getattr(owner, '__name__', owner)}.{name}")


def _timed(fn: Callable, name: str = "", only: type | None = None) -> Callable:
    """Return fn with a timer; its span is called ``name``, or like fn if that is ""."""
    from torch.distributed import Work

    name, clock = name or fn.__name__, _clock
    later, collective = f"{name}.wait", name in SIZED or name in UNSIZED

    @functools.wraps(fn)
    def timed(*args: Any, **kwargs: Any) -> Any:
        mine = _thread() == clock.thread
        if collective and clock.inside == BACKWARD and mine and _recorder:
            # A hook's call: another rank may make it outside of its backward.
            _recorder.note(name, args, kwargs, _place(sys._getframe(1)))
            clock.inside = True
            try:
                return fn(*args, **kwargs)
            finally:
                clock.inside = BACKWARD
        if clock.inside or not mine:
            return fn(*args, **kwargs)
        if only is not None and type(args[0]) is not only:  # a compiler's fake tensor
            return fn(*args, **kwargs)
        if collective and _recorder:
            _recorder.note(name, args, kwargs, _place(sys._getframe(1)))
        clock.inside, start = True, _now()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            if not failed(name, error) and collective and _recorder:
                _recorder.take_back()
            raise
        finally:
            stop = _now()
            clock.inside = False
            if _recorder:
                _recorder.ended()
            clock.keep(name, start, stop, stop - start)
        if isinstance(result, Work):
            _works[result] = later
        return result

    return timed


def _timed_wait(fn: Callable) -> Callable:
    """Return ``Work.wait`` with a timer, named after the call that made the work."""
    clock = _clock

    @functools.wraps(fn)
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        if clock.inside or _thread() != clock.thread:
            return fn(work, *args, **kwargs)
        clock.inside, start = True, _now()
        try:
            return fn(work, *args, **kwargs)
        except RuntimeError as error:
            failed(_works.get(work, "wait"), error)
            raise
        finally:
            stop = _now()
            clock.inside = False
            if _recorder:
                _recorder.ended()
            clock.keep(_works.get(work, "wait"), start, stop, stop - start)

    return wait


def _timed_backward(fn: Callable) -> Callable:
    """Return autograd's engine with a timer that tells computing from waiting.

    On the CPU the engine runs in the calling thread. It waits while it neither uses a
    core nor queues for one. A GPU's backward runs in threads of its own, so there the
    processor time of the whole process counts.
    """
    clock = _clock

    @functools.wraps(fn)
    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if clock.inside or _thread() != clock.thread:
            return fn(outputs, *args, **kwargs)
        first = outputs[0] if outputs else None
        if type(first).__name__ in ("FakeTensor", "FunctionalTensor"):  # a compiler's
            return fn(outputs, *args, **kwargs)
        device = getattr(first, "device", None)
        used = time.thread_time
        if device is not None and device.type != "cpu":
            used = time.process_time
        clock.inside, busy, start = BACKWARD, used() + clock.queued(), _now()
        try:
            return fn(outputs, *args, **kwargs)
        finally:
            stop = _now()
            busy = used() + clock.queued() - busy
            clock.inside = False
            if _recorder:
                _recorder.ended()
            name = "backward" if kwargs.get("accumulate_grad", True) else "grad"
            clock.keep(name, start, stop, max(0.0, stop - start - busy))

    return run


def _taking_a_callback(fn: Callable) -> Callable:
    """Return a method of ``Future`` that hides what the callbacks given to it call.

    A callback runs at once in this thread if the future is done by then, and else in
    a thread of the backend: on one rank this way, on the next one that way. So its
    calls are noted on none, or ranks that agree would look as if they did not.
    """
    clock = _clock

    @functools.wraps(fn)
    def take(future: Any, callback: Callable) -> Any:
        def hidden(done: Any) -> Any:
            if _thread() != clock.thread:
                return callback(done)
            before, clock.inside = clock.inside, True
            try:
                return callback(done)
            finally:
                clock.inside = before

        return fn(future, hidden)

    return take
