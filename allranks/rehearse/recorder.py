"""The record of one process of a rehearsal, written while it runs.

A record is a JSON file in the rehearsal's folder. A thread writes it again twice a
second, so that a process that is killed, or waits for ever, leaves what it did.
"""

import atexit
import contextlib
import functools
import os
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.multiprocessing import ProcessExitedException

from allranks.backends import nccl
from allranks.rehearse import lines, records, script_errors
from allranks.rehearse.memory import Holders
from allranks.rehearse.records import Failure, Gpu, NotEntered, Record, Stage
from allranks.rehearse.replicas import Replicas, after
from allranks.rehearse.samples import Samples
from allranks.rehearse.traffic import SavedFiles, Traffic
from allranks.vgpu import machine
from allranks.vgpu.machine import Device, Machine

PERIOD_S = 0.5  # between two writings of the record
MOST_LINES = 8  # of a GPU's memory
_recorder: "Recorder | None" = None


class Recorder:
    """Notes what this process does on its GPUs.

    Args:
        stage: the rehearsal, with the folder where the record goes.
        machine: the GPUs.
        of_command: whether the reader's command started this process, or a launcher in
            it, and not the script.
    """

    def __init__(self, stage: Stage, machine: Machine, of_command: bool) -> None:
        self.of_command = of_command
        self.stage = stage
        self.folder, self.machine = Path(stage.folder), machine
        self.unknown_reads: Counter = Counter()  # by line, in a dry run
        self.begun_here = True  # and not inherited from a process that forked
        self.samples = Samples(lambda: self.replicas.num_steps)
        self.holders = Holders(machine, lambda: self.samples.batch)
        # A guard ends before the watchdog calls its wait for a rank a hang.
        patience_s, alone = stage.watch_s / 3, bool(stage.world_size)
        self.replicas = Replicas(self.holders.modules, stage.guard, patience_s, alone)
        self.traffic, self.saved = Traffic(self.replicas), SavedFiles()
        self.contexts = DeviceContexts()
        self.began = time.time()
        self.error: Failure | None = None
        self.ended, self.exit_code, self.in_rendezvous = False, 0, False
        self.exit_codes: dict[int, int] = {}  # of processes that it started
        self.keep_writing()
        machine.observer = self  # whose methods are those of two of its parts
        self.on_allocate, self.on_free = self.holders.on_allocate, self.holders.on_free
        self.on_out_of_memory = self.holders.on_out_of_memory
        self.on_copy = self.traffic.on_copy
        nccl.watch(self.traffic.called)
        nccl.watch_others(self.traffic.called_gloo)
        after(DeviceMesh, "__init__", lambda mesh, *_: self.traffic.name_axes(mesh))
        self.replicas.watch()
        self.samples.watch()

    def record(self) -> Record:
        """Return all that is known."""
        replicas, traffic = self.replicas, self.traffic
        traffic.note_rank()
        for device in self.machine.devices:
            self.holders.look(device)
        clocks = [self.machine.host_s, *(d.free_s for d in self.machine.devices)]
        # Whoever has not joined a group yet, or never will, is told by the launcher.
        rank = _number("RANK") if traffic.rank is None else traffic.rank
        return Record(
            host=os.environ.get("ALLRANKS_HOST") or socket.gethostname(),
            pid=os.getpid(),
            began=self.began,
            of_command=self.of_command,
            rank=rank,
            local_rank=_number("LOCAL_RANK"),
            world_size=traffic.world_size or _number("WORLD_SIZE") or 1,
            declared_world_size=_number("WORLD_SIZE") or 1,
            in_rendezvous=self.in_rendezvous,
            gpus=[self._gpu(d) for d in self.machine.devices if self._is_used(d)],
            current_device=getattr(self.machine.thread, "index", 0),
            num_steps=replicas.num_steps,
            num_backwards=replicas.num_backwards,
            num_accumulations=replicas.num_accumulations,
            num_scaler_steps=replicas.num_scaler_steps,
            unwrapped_sums=replicas.unwrapped_sums,
            replicated=replicas.replicated,
            data_parallel=replicas.data_parallel,
            digests=replicas.digests,
            ddp=replicas.ddp,
            fsdp=replicas.fsdp,
            guard=replicas.guard_notes(),
            collectives=list(traffic.collectives.values()),
            dry=bool(self.stage.world_size),
            unknown_reads=self.unknown_reads,
            gloo_collectives=list(traffic.gloo_collectives.values()),
            copies=list(traffic.copies.values()),
            num_late_collectives=traffic.num_late,
            uses_gloo=traffic.uses_gloo,
            last_collective=traffic.last,
            epochs=self.samples.epochs,
            saved=list(self.saved.files.values()),
            not_entered=self.contexts.not_entered(),
            modelled_s=max(clocks),
            error=self.error,
            ended=self.ended,
            exit_code=self.exit_code,
            exit_codes=self.exit_codes,
            standing_line=lines.standing(),
        )

    def _is_used(self, device: Device) -> bool:
        return bool(device.taken or self.holders.max_bytes[device.index])

    def _gpu(self, device: Device) -> Gpu:
        _, by_holder, by_line = self.holders.peak(device)
        return Gpu(
            index=device.index,
            physical=device.physical,
            peak_bytes=max(device.peak, self.holders.max_bytes[device.index]),
            capacity_bytes=device.capacity,
            reserved_bytes=device.reserved,
            first_line=self.holders.first_lines.get(device.index, ""),
            holders=by_holder,
            lines=by_line.most_common(MOST_LINES),
            state=self.holders.states.get(device.index, {}),
            growth=self.holders.growth(device).of_batch(self.samples.trained()),
        )

    def keep_writing(self) -> None:
        """Write the record every so often, from a thread of its own."""
        self.lock = threading.RLock()  # a signal may end who holds it

        def write_on() -> None:
            self.holders.watching_thread = threading.get_ident()
            while not self.ended:
                with contextlib.suppress(RuntimeError):  # it changed meanwhile
                    if self.worth_writing():
                        self.write()
                time.sleep(PERIOD_S)

        threading.Thread(target=write_on, daemon=True).start()

    def write(self) -> None:
        """Write the record as it is now."""
        with self.lock, contextlib.suppress(FileNotFoundError):  # its folder is gone
            records.write(self.record(), self.folder)

    def worth_writing(self) -> bool:
        """Tell whether this process used a GPU or a group, or was started for it."""
        used = any(map(self._is_used, self.machine.devices))
        return bool(used or self.traffic.collectives or self.begun_here)

    def close(self) -> None:
        """Write the record for the last time, if there is anything to say."""
        if not self.ended and self.worth_writing():
            self.ended = True
            self.write()


def begin(stage: Stage, of_command: bool) -> None:
    """Record this process, and those that it forks."""
    global _recorder
    _recorder = Recorder(stage, machine.current(), of_command)
    _at_end()
    # None of these calls atexit: a launcher's child ends by the first, and a wrapper
    # script becomes the program that it starts by the others.
    os._exit = _closing(os._exit)
    os.execv, os.execve = _closing(os.execv), _closing(os.execve)
    os.register_at_fork(after_in_child=_forked)


def current() -> Recorder:
    """Return the recorder of this process."""
    return _recorder


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
    for part in recorder.replicas, recorder.traffic, recorder.samples, recorder.saved:
        part.forget()
    for device in recorder.machine.devices:
        device.taken = 0  # what is there is its parent's
    recorder.holders.max_bytes.clear()
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


@contextlib.contextmanager
def rendezvous() -> Iterator[None]:
    """Note that this process waits for the other ranks of its job to come.

    If an error ends the wait, the note stays, as they have not come.
    """
    if _recorder is not None:
        _recorder.in_rendezvous = True
    yield
    if _recorder is not None:
        _recorder.in_rendezvous = False


def note(error: BaseException) -> None:
    """Note an error as the end of this process, with what to do if that is known."""
    holders = None if _recorder is None else _recorder.holders
    failure = script_errors.describe(error, holders)
    if _recorder is None:
        return
    _recorder.error = failure
    if isinstance(error, ChildFailedError):
        failed = error.failures.values()
        _recorder.exit_codes |= {process.pid: process.exitcode for process in failed}
    if isinstance(error, ProcessExitedException):
        _recorder.exit_codes[error.error_pid] = error.exit_code
    _recorder.write()


class DeviceContexts:
    """Follows context managers for a device that nobody enters, from now on.

    ``torch.accelerator.device_index(1)`` without ``with`` does nothing.
    """

    def __init__(self) -> None:
        self.counts: Counter = Counter()  # by name and line
        device_index = torch.accelerator.device_index
        self._watch(device_index, "torch.accelerator.device_index")
        self._watch(torch.cuda.device, "torch.cuda.device")

    def not_entered(self) -> list[NotEntered]:
        """Return what was made, and freed without having been entered."""
        return [NotEntered(*key, times) for key, times in self.counts.items()]

    def _watch(self, cls: type, name: str) -> None:
        init, enter, counts = cls.__init__, cls.__enter__, self.counts

        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            line, _, direct = lines.place()
            if type(self) is cls and direct and line:
                # It may be entered as long as it is alive, so its end decides.
                self._end = weakref.finalize(self, counts.update, {(name, line): 1})
                self._end.atexit = True

        @functools.wraps(enter)
        def __enter__(self: Any) -> Any:
            if (end := getattr(self, "_end", None)) is not None:
                end.detach()
            return enter(self)

        cls.__init__, cls.__enter__ = __init__, __enter__


def _number(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
