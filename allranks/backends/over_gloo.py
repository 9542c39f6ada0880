"""What our backends share: gloo does whatever they do not do themselves."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work, _create_work_from_future

# torch 2.13 has renamed some methods, and calls them by the new names.
RENAMED = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}


class OverGloo(dist.ProcessGroup):
    """A process group over one of gloo.

    A subclass overrides ``allreduce``, ``_allgather_base``, ``_reduce_scatter_base``
    and what else it does itself.

    Args:
        store: where the group's ranks find one another.
        rank, world_size: of this process in the group.
        timeout: for every collective.
    """

    name: str  # what ``dist.get_backend`` shows

    def __init__(
        self, store: dist.Store, rank: int, world_size: int, timeout: timedelta
    ) -> None:
        super().__init__(rank, world_size)
        self._gloo = dist.ProcessGroupGloo(store, rank, world_size, timeout)
        kind = dist.ProcessGroup.BackendType.GLOO  # what torch calls if we do not
        self._register_backend(torch.device("cpu"), kind, self._gloo)
        self._set_default_backend(kind)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, new in RENAMED.items():
            setattr(cls, new, getattr(cls, name))

    def getBackendName(self) -> str:
        """Return the name that ``dist.get_backend`` shows."""
        return self.name

    # DTensor calls the next three, mostly with one tensor. Left to gloo, they may hang:
    # a thread of gloo's that frees a tensor wants Python's lock, which the caller holds
    # while it waits for that thread's own lock (torch 2.13).
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> Work:
        """Replace several tensors by their sums or means."""
        for tensor in tensors:
            self.allreduce([tensor], opts).wait()
        return done(tensors)

    def allgather_into_tensor_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any = None
    ) -> Work:
        """Fill several tensors with those of all ranks."""
        for out, tensor in zip(outs, tensors, strict=True):
            self._allgather_base(out, tensor).wait()
        return done(outs)

    def reduce_scatter_tensor_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], opts: Any
    ) -> Work:
        """Fill several tensors with this rank's parts of sums or means."""
        for out, tensor in zip(outs, tensors, strict=True):
            self._reduce_scatter_base(out, tensor, opts).wait()
        return done(outs)

    def _get_sequence_number_for_group(self) -> int:
        """Refuse to count: gloo's part of the calls would be no measure of all."""
        raise RuntimeError(f"the backend {self.name!r} does not count its collectives")


def done(result: list[torch.Tensor]) -> Work:
    """Return work that has ended, with its result."""
    future = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


def by_gloo(name: str) -> Callable:
    """Return a method that calls gloo's, without a detour through torch's own.

    Live ranks wrap torch's own in Python. From there a call would come back here, as
    torch would take the wrapper for our override.
    """

    def method(self: OverGloo, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._gloo, name)(*args, **kwargs)

    return method


for _name in "send", "recv", "recv_anysource", "monitored_barrier":
    setattr(OverGloo, _name, by_gloo(_name))
