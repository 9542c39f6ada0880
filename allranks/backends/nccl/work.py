"""A collective on its way: gloo's work, with NCCL's words if it fails."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import Work

from allranks.backends.nccl import watchdog
from allranks.backends.nccl.calls import Call
from allranks.vgpu.messages import refusal

OPS = {  # as WorkNCCL prints them
    "all_reduce": "ALLREDUCE",
    "all_gather": "_ALLGATHER_BASE",
    "reduce_scatter": "_REDUCE_SCATTER_BASE",
    "all_to_all": "ALLTOALL_BASE",
    "barrier": "BARRIER",
}
TIMED_OUT = ("timed out", "timeout")
GONE = ("connection closed", "connection reset", "connection refused", "broken pipe")


class NcclWork(Work):
    """What an operation of the group returns.

    Args:
        rank: of this process in the group.
        call: what was asked for.
        timeout: after which NCCL's watchdog would end the job.
        works: gloo's, all of which have to end.
        result: the tensors that have their values then.
    """

    def __init__(
        self,
        rank: int,
        call: Call,
        timeout: timedelta,
        works: list[Any],
        result: list[torch.Tensor],
    ) -> None:
        super().__init__()
        self._call, self._works, self._result = call, works, result
        self._about = rank, call, timeout
        self._explained = partial(explained, *self._about, time.monotonic())
        self._error: dist.DistBackendError | None = None
        self.on_end: Callable[[NcclWork], Any] = lambda work: None

    @classmethod
    def together(cls, batch: "Sequence[NcclWork]") -> "NcclWork":
        """Return one work that ends when all of a batch have ended."""
        first = batch[0]
        result = [tensor for each in batch for tensor in each._result]
        return cls(*first._about, [*batch], result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation has ended.

        Raises:
            DistBackendError: if it took too long, or another rank has gone; in the
                watchdog's or in NCCL's words.
        """
        if self._error is not None:
            raise self._error
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as error:
            self._error = self._explained(error)
            raise self._error from None
        finally:
            self._works = []
            self.on_end(self)
        return True

    def synchronize(self) -> None:
        """Wait: there is one stream per device, which the program is part of."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, if anything has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it fills."""
        return self._result

    def get_future(self) -> torch.futures.Future:
        """Return a future with the tensors, which are on this rank's GPU.

        DDP waits for it. Its error has NCCL's words, too.
        """
        try:
            futures = [work.get_future() for work in self._works]
        except RuntimeError:  # gloo's messages and its reduce_scatter have none
            futures = []
        if not futures:
            self.wait()
            future = torch.futures.Future()
            future.set_result(self._result)
            return future

        result, explained = self._result, self._explained

        def finish(ended: torch.futures.Future) -> list[torch.Tensor]:
            # In gloo's thread, which must not be the one to free gloo's work: so there
            # is no reference to self.
            try:
                for each in ended.value():
                    each.value()
            except RuntimeError as error:
                raise explained(error) from None
            return result

        future = torch.futures.collect_all(futures)
        self.on_end(self)  # the future is all that is needed from now on
        return future.then(finish)

    def get_future_result(self) -> torch.futures.Future:
        """Return a future that tells whether it has ended well."""

        def judge(ended: torch.futures.Future) -> c10d.WorkResult:
            try:
                ended.value()
            except RuntimeError:
                return c10d.WorkResult.COMM_ERROR
            return c10d.WorkResult.SUCCESS

        return self.get_future().then(judge)

    def _get_duration(self) -> NoReturn:
        """Refuse, as nothing is measured."""
        raise NotImplementedError(refusal("the duration of a collective"))

    def _source_rank(self) -> int:
        """Return the rank that a message came from."""
        return self._call.peer


def explained(
    rank: int, call: Call, timeout: timedelta, start: float, error: RuntimeError
) -> dist.DistBackendError:
    """Return gloo's error in NCCL's words.

    Args:
        rank: of this process in the group.
        call: that has failed.
        timeout: after which NCCL's watchdog would end the job.
        start: when it began, in ``time.monotonic()``.
        error: gloo's.
    """
    text = str(error)
    if isinstance(error, dist.DistBackendError):
        return error
    if any(sign in text.lower() for sign in TIMED_OUT):
        # A rehearsal may wait less than the script asked for, so that nobody waits for
        # half an hour; the sentence is the one that a real job prints at its own limit.
        asked_ms = round(timeout.total_seconds() * 1000)
        waited_s = time.monotonic() - start
        ran_ms = max(asked_ms, round(waited_s * 1000))
        note = f" (The rehearsal waited for {waited_s:.1f} s.)"
        return dist.DistBackendError(
            f"[Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={call.number}, OpType={op_type(call.op)}, "
            f"NumelIn={call.num_in}, NumelOut={call.num_out}, "
            f"Timeout(ms)={asked_ms}) ran for {ran_ms} milliseconds before timing "
            f"out.{note if watchdog.limit(timeout) < timeout else ''}"
        )
    if any(sign in text.lower() for sign in GONE):
        return dist.DistBackendError(
            f"[Rank {rank}] NCCL error in {op_type(call.op)}: remote process "
            "exited or there was a network error\nncclRemoteError: A call failed "
            "possibly due to a network error or a remote process exiting "
            f"prematurely.\nLast error:\n{text}"
        )
    return dist.DistBackendError(text)


def op_type(op: str) -> str:
    """Return the name that WorkNCCL prints for an operation."""
    return OPS.get(op, op.upper())
