"""The record of one process of a rehearsal, written while it runs.

A record is a JSON file in the rehearsal's folder. A thread writes it again twice a
second, so that a process that is killed, or waits for ever, leaves what it did.
"""

import atexit
import contextlib
import functools
import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.multiprocessing import ProcessExitedException

from allranks.backends import nccl
from allranks.rehearse import contexts, host_memory, lines, origins, packages
from allranks.rehearse.memory import Holders
from allranks.rehearse.samples import Samples
from allranks.rehearse.saved import Saved
from allranks.rehearse.settings import Settings
from allranks.rehearse.traffic import Traffic
from allranks.rehearse.training import Training
from allranks.vgpu.machine import Device, Machine, current

PERIOD_S = 0.5
_recorder: "Recorder | None" = None


class Recorder:
    """Notes what this process does on its GPUs.

    Args:
        stage: the rehearsal, with the folder where the record goes.
        machine: the GPUs.
        of_command: whether the reader's command started this process, or a launcher in
            it, and not the script.
    """

    def __init__(self, stage: Settings, machine: Machine, of_command: bool) -> None:
        self.of_command = of_command
        self.folder, self.machine = Path(stage.folder), machine
        self.begun_here = True  # and not inherited from a process that forked
        self.samples = Samples(lambda: self.training.num_steps)
        self.holders = Holders(machine, lambda: self.samples.batch)
        self.training = Training(self.holders.modules, stage.guard, stage.watch_s / 3)
        self.traffic, self.saved = Traffic(self.training), Saved()
        self.began = time.time()
        self.error: dict[str, Any] | None = None
        self.ended, self.exit_code, self.meeting = False, 0, False
        self.deaths: dict[int, int] = {}  # exit codes of processes that it started
        self.keep_writing()
        machine.observer = self
        self.took, self.frees = self.holders.took, self.holders.frees
        self.lacks, self.copied = self.holders.lacks, self.traffic.copied
        nccl.watch(self.traffic.called)
        nccl.watch_others(self.traffic.other)
        self.training.watch()
        self.samples.watch()
        contexts.watch()

    def record(self) -> dict[str, Any]:
        """Return all that is known, as JSON takes it."""
        self.traffic.meet()
        env, rank = os.environ, self.traffic.rank
        for device in self.machine.devices:
            self.holders.look(device)
        return {
            "host": env.get("ALLRANKS_HOST") or socket.gethostname(),
            "pid": os.getpid(),
            "began": self.began,
            "of_command": self.of_command,
            "rank": rank if rank is not None else _number("RANK"),
            "local_rank": _number("LOCAL_RANK"),
            "world_size": self.traffic.world_size or _number("WORLD_SIZE") or 1,
            "asked": _number("WORLD_SIZE") or 1,
            "meeting": self.meeting,
            "gpus": [self._gpu(d) for d in self.machine.devices if self._used(d)],
            "current": getattr(self.machine.thread, "index", 0),
            **self.training.facts(),
            **self.traffic.facts(),
            "epochs": self.samples.facts(),
            "saved": self.saved.facts(),
            "not_entered": contexts.lines(),
            "modelled_s": max(
                [self.machine.host_s, *(d.free_s for d in self.machine.devices)]
            ),
            "error": self.error,
            "ended": self.ended,
            "exit": self.exit_code,
            "deaths": self.deaths,
            "stands": lines.standing(),
        }

    def _used(self, device: Device) -> bool:
        return bool(device.taken or self.holders.most[device.index])

    def _gpu(self, device: Device) -> dict[str, Any]:
        _, holders, places = self.holders.peak(device)
        return {
            "index": device.index,
            "physical": device.physical,
            "peak": max(device.peak, self.holders.most[device.index]),
            "capacity": device.capacity,
            "reserved": device.reserved,
            "first_line": self.holders.first.get(device.index, ""),
            "holders": dict(holders),
            "lines": places.most_common(8),
            "growth": self.holders.growth(device).facts(self.samples.trained()),
        }

    def keep_writing(self) -> None:
        """Write the record every so often, from a thread of its own."""
        self.lock = threading.RLock()  # a signal may end who holds it

        def write() -> None:
            self.holders.bystander = threading.get_ident()
            while not self.ended:
                with contextlib.suppress(RuntimeError):  # it changed meanwhile
                    if self.worth_writing():
                        self.write()
                time.sleep(PERIOD_S)

        threading.Thread(target=write, daemon=True).start()

    def write(self) -> None:
        """Write the record, in one move, so that nobody reads half of it."""
        with self.lock, contextlib.suppress(FileNotFoundError):  # its folder is gone
            path = self.folder / f"{os.getpid()}.json"
            part = path.with_suffix(".part")
            part.write_text(json.dumps(self.record()), "utf8")
            part.replace(path)

    def worth_writing(self) -> bool:
        """Tell whether this process used a GPU or a group, or was started for it."""
        used = any(map(self._used, self.machine.devices))
        return bool(used or self.traffic.calls or self.begun_here)

    def close(self) -> None:
        """Write the record for the last time, if there is anything to say."""
        if not self.ended and self.worth_writing():
            self.ended = True
            self.write()


def begin(stage: Settings, of_command: bool) -> None:
    """Record this process, and those that it forks."""
    global _recorder
    _recorder = Recorder(stage, current(), of_command)
    _at_end()
    os._exit = _closing(os._exit)
    os.execv, os.execve = _closing(os.execv), _closing(os.execve)
    os.register_at_fork(after_in_child=_forked)


def _at_end() -> None:
    """Close the record when the process ends.

    multiprocessing's processes end without ``atexit``, and forget at their start what
    should be called at their end, so that has to be said after their start.
    """
    atexit.register(_recorder.close)
    util.register_after_fork(_recorder, _at_end_of_child)


def _closing(leave: Callable) -> Callable:
    """Return a function that ends this process at once, with a record all the same."""

    @functools.wraps(leave)
    def called(*args: Any) -> Any:
        if leave.__name__ == "_exit":
            _recorder.exit_code = args[0]
        _recorder.close()
        try:
            return leave(*args)
        except OSError:  # there is no such program, so this one goes on
            _recorder.ended = False
            _recorder.keep_writing()
            raise

    return called


def _at_end_of_child(recorder: Recorder) -> None:
    util.Finalize(None, recorder.close, exitpriority=1)


def _forked() -> None:
    """Begin the record of a forked process anew."""
    recorder = _recorder
    recorder.begun_here = recorder.of_command = recorder.ended = False
    recorder.training.forget()
    recorder.traffic.forget()
    recorder.samples.forget()
    recorder.saved.forget()
    for device in recorder.machine.devices:
        device.taken = 0
    recorder.holders.most.clear()
    recorder.error, recorder.exit_code, recorder.began = None, 0, time.time()
    recorder.keep_writing()


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Note the error that ends the reader's script, with its line, or its exit code."""
    try:
        yield
    except SystemExit as end:
        if _recorder is not None:
            is_number = isinstance(end.code, int)
            _recorder.exit_code = end.code if is_number else int(end.code is not None)
        raise
    except BaseException as error:
        note(error)
        raise


def meeting(waits: bool) -> None:
    """Take note whether this process waits for the other ranks of its job to come."""
    if _recorder is not None:
        _recorder.meeting = waits


def note(error: BaseException) -> None:
    """Note an error as the end of this process, with what to do if that is known."""
    advice = packages.advice(error) or host_memory.advice(error)
    if advice:
        error.add_note(f"rehearsal: {advice}")
    if _recorder is None:
        return
    frames = traceback.walk_tb(error.__traceback__)
    own = [
        f"{frame.f_code.co_filename}:{number}"
        for frame, number in frames
        if lines.whose(frame.f_code)[0] == lines.READER
    ]
    _recorder.error = {
        "type": type(error).__name__,
        "text": f"{error}: {advice}" if advice else str(error),
        "line": own[-1] if own else "",
        "log": "".join(traceback.format_exception(error)),
        "made": origins.made(error, _recorder.holders),
    }
    if isinstance(error, ChildFailedError):
        _recorder.deaths |= {one.pid: one.exitcode for one in error.failures.values()}
    if isinstance(error, ProcessExitedException):
        _recorder.deaths[error.error_pid] = error.exit_code
    _recorder.write()


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
