"""The process group behind the name "nccl": gloo does the work, NCCL's rules hold.

torch's own Python makes it where a CUDA build would make the real one, registers it for
the device type cuda, and finds it there again. So ``init_process_group``, ``new_group``
and DeviceMesh stay as they are, and a CPU tensor meets c10d's own sentence: the group
has no backend for it.
"""

import ctypes
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from allranks.backends.nccl import agreement, rules, watchdog
from allranks.backends.nccl.calls import Call, tell
from allranks.backends.nccl.meeting import Meeting
from allranks.backends.nccl.stubs import Stubs
from allranks.backends.nccl.work import NcclWork, explained
from allranks.vgpu.messages import refusal

MOST_WORKS = 256  # that nobody has waited for, of which the last ones are kept
_own_register = dist.ProcessGroup._register_backend
_own_number = dist.ProcessGroup._get_sequence_number_for_group
_of_group: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Options:
    """What ``ProcessGroupNCCL.Options()`` holds; it is accepted, and changes nothing.

    Args:
        is_high_priority_stream: of the stream, which is not rehearsed.
    """

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = SimpleNamespace()
        self._timeout = timedelta(minutes=10)
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""


class ProcessGroupNCCL(Stubs, dist.ProcessGroupGloo):
    """A backend of c10d that obeys NCCL's rules.

    Args:
        store: where the group's ranks find one another.
        rank, size: of this process in the group.
        options: with the timeout of the group's collectives.
    """

    Options = Options
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = range(3)
    supports_coalescing = True

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        options: Options | timedelta | None = None,
    ) -> None:
        if isinstance(options, timedelta):
            options, given = Options(), options
            options._timeout = given
        self._options = options or Options()
        limit = watchdog.limit(self._options._timeout)
        super().__init__(store, rank, size, timeout=limit)
        # Never freed: the destructor joins gloo's threads with Python's lock held, and
        # one of them may wait for that lock to free a function given to ``then``.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        self._meeting = Meeting(store, rank, size, limit)
        self._used: set[int] = set()  # indices of the GPUs that it has worked on
        self._number = self._messages = 0
        self._works: deque[NcclWork] = deque(maxlen=MOST_WORKS)
        self._batch: list[NcclWork] | None = None
        self._posted: deque[torch.Tensor] = deque()  # messages of this rank to itself
        self._wanted: deque[torch.Tensor] = deque()
        self._process_group: Callable[[], Any] = lambda: None

    @property
    def options(self) -> Options:
        """Return what the group was made with."""
        return self._options

    def name(self) -> str:
        """Return what DeviceMesh compares with the name of a backend."""
        return "nccl"

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of the collectives to come."""
        self._options._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        """Begin to count collectives."""
        self._number = 0

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives the group has begun."""
        return self._number

    def configure(self, options: Any, timeout_ms: int = -1, **values: Any) -> Any:
        """Return options of a call of gloo's, filled in, with the watchdog's timeout.

        Args:
            options: such as ``AllreduceOptions()``.
            timeout_ms: that the caller asked for; -1 for the group's.
            **values: for the options' other attributes.
        """
        options.timeout = watchdog.limit(self._timeout(timeout_ms))
        for name, value in values.items():
            setattr(options, name, value)
        return options

    def start(
        self,
        op: str,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        launch: Callable[[], Any],
        async_op: bool = True,
        timeout_ms: int = -1,
        peer: int | None = None,
        same: str | None = None,
    ) -> NcclWork:
        """Begin one operation, once it has been found to obey NCCL's rules.

        Args:
            op: as torch calls it: "all_reduce".
            inputs, outputs: the tensors that it reads and fills.
            launch: starts gloo; returns its work, or a list of several, or None if
                everything has been done.
            async_op: whether the caller waits itself.
            timeout_ms: that the caller asked for; -1 for the group's.
            peer: of a message, its other rank in the group.
            same: what has to be equal on all ranks besides the op and the dtype; by
                default how many numbers go in.

        Raises:
            ValueError: if the tensors break a rule; in NCCL's own sentence.
            DistBackendError: if the ranks' devices do, or they call different things.
            NotImplementedError: in the capture of a CUDA graph.
        """
        group = self._process_group()
        homes = rules.check([*inputs, *outputs], message=peer is not None)
        home = rules.check_device(homes, getattr(group, "bound_device_id", None))
        self._used.add(home.index)
        if home.machine.capture is not None:
            raise NotImplementedError(refusal(f"{op} while a CUDA graph is captured"))
        if peer is None:
            self._meeting.hold(home)
        call = Call.of(op, inputs, outputs, group, self._count(peer), async_op, peer)
        tell(call)
        # NCCL would hang, or add up what does not belong together, where ranks call
        # different things; here they compare first, and say what each one calls.
        if peer is None and self.size() > 1:
            same = f"{call.num_in}" if same is None else same
            self._agree(call, agreement.what(call, same), timeout_ms)
        shape, num_bytes = outputs[0].shape if outputs else (), call.num_bytes
        home.machine.compute(home, f"nccl:{op}", shape, num_bytes=num_bytes)
        # From here gloo's threads work on; the work that is returned waits for them.
        started = self._carry_out(call, inputs, outputs, launch)
        works = started if isinstance(started, list) else [started] if started else []
        timeout = self._timeout(timeout_ms)
        work = NcclWork(self.rank(), call, timeout, works, [*outputs])
        if self._batch is not None:
            self._batch.append(work)
        self._keep(work)
        return work

    def _carry_out(
        self,
        call: Call,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        launch: Callable[[], Any],
    ) -> Any:
        """Start what fills the outputs; return what ``launch`` of ``start`` returns."""
        return launch()

    def own_gpu(self, given: torch.device) -> int:
        """Return the index of the GPU that NCCL takes for a call without tensors.

        Args:
            given: where c10d would have it; it knows how many GPUs there are.
        """
        bound = getattr(self._process_group(), "bound_device_id", None)
        if bound is not None:
            return bound.index
        if self._used:
            return min(self._used)
        count = torch.get_device_module(given.type).device_count()
        return dist.get_rank() % count

    def _count(self, peer: int | None) -> int:
        """Count a collective, or a message (which NCCL numbers apart)."""
        if peer is None:
            self._number += 1
            return self._number
        self._messages += 1
        return self._messages

    def _agree(self, call: Call, what: str, timeout_ms: int) -> None:
        """Wait until all ranks have said what they have come for; raise if it differs.

        It takes one small all_gather, which comes before the collective itself.
        """
        begun = time.monotonic()

        def gather(row: torch.Tensor) -> torch.Tensor:
            options = self.configure(c10d.AllgatherOptions(), timeout_ms)
            rows = row.new_empty(self.size(), len(row))
            try:
                self._allgather_base(rows.view(-1), row, options).wait()
            except RuntimeError as error:
                timeout = self._timeout(timeout_ms)
                told = explained(self.rank(), call, timeout, begun, error)
                raise told from None
            return rows

        agreement.agree(self.rank(), call.number, what, gather)

    def join(self, works: list[NcclWork]) -> NcclWork:
        """Return one work that ends when several have ended."""
        work = NcclWork.together(works)
        self._keep(work)
        return work

    def begin_batch(self) -> None:
        """Collect what starts from now on, as ncclGroupStart does."""
        self._batch = []

    def end_batch(self) -> NcclWork | None:
        """Return one work for all that has started since; None if nothing has."""
        batch, self._batch = self._batch or [], None
        return self.join(batch) if batch else None

    def post(self, row: torch.Tensor, target: int) -> Any:
        """Send a row of numbers to a rank of the group, without a tag."""
        if target != self.rank():
            return self.send([row], target, 0)
        if self._wanted:
            self._wanted.popleft().copy_(row)
        else:
            self._posted.append(row.clone())
        return None

    def fetch(self, row: torch.Tensor, source: int) -> Any:
        """Receive a row of numbers from a rank of the group."""
        if source != self.rank():
            return self.recv([row], source, 0)
        if self._posted:
            row.copy_(self._posted.popleft())
        else:
            self._wanted.append(row)
        return None

    def _keep(self, work: NcclWork) -> None:
        """Keep Python's half of a work alive until somebody has waited for it.

        C++ holds only its own half, and would wait for ever if Python's were gone.
        """
        self._works.append(work)

        def forget(ended: NcclWork) -> None:
            if ended in self._works:
                self._works.remove(ended)

        work.on_end = forget

    def _timeout(self, timeout_ms: int) -> timedelta:
        if timeout_ms > 0:
            return timedelta(milliseconds=timeout_ms)
        return self._options._timeout


def of(group: dist.ProcessGroup) -> ProcessGroupNCCL | None:
    """Return the backend that a process group has for GPUs, if it is ours."""
    return _of_group.get(group)


def sequence_number(self: dist.ProcessGroup) -> int:
    """Return how many collectives a group has begun, for ours without gloo's own."""
    ours = of(self)
    return _own_number(self) if ours is None else ours._get_sequence_number_for_group()


def register_backend(
    self: dist.ProcessGroup, device: torch.device, kind: Any, backend: Any = None
) -> None:
    """Register a backend as c10d does, and remember ours, which C++ would forget."""
    _own_register(self, device, kind, backend)
    inner = getattr(backend, "wrapped_pg", backend)
    if isinstance(inner, ProcessGroupNCCL):
        _of_group[self] = inner
        inner._process_group = weakref.ref(self)
