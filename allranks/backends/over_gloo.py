"""What our backends share: a group of gloo's, which does what they leave to it.

Whatever torch calls is a method here. What we did not override would run torch's own,
which holds Python's lock (the GIL) while it calls gloo. A thread of gloo's that frees a
tensor wants this lock, and holds another one that the call needs: both would wait for
ever (torch 2.13). Gloo's own methods let go of it, so we call them.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# torch 2.13 has renamed some methods, and calls them by the new names.
RENAMED = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}
MESSAGES = "send", "recv", "recv_anysource"


class OverGloo(dist.ProcessGroup):
    """A process group over one of gloo.

    A subclass overrides all collectives: none may be left to torch.

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
            if hasattr(cls, name):
                setattr(cls, new, getattr(cls, name))

    def getBackendName(self) -> str:
        """Return the name that ``dist.get_backend`` shows."""
        return self.name

    def _get_sequence_number_for_group(self) -> int:
        """Refuse to count: gloo's part of the calls would be no measure of all."""
        raise RuntimeError(f"the backend {self.name!r} does not count its collectives")


def by_gloo(name: str) -> Callable:
    """Return a method that calls gloo's, without a detour through torch's own.

    Live ranks wrap torch's own in Python. From there a call would come back here, as
    torch would take the wrapper for our override.
    """

    def method(self: OverGloo, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._gloo, name)(*args, **kwargs)

    return method


for _name in MESSAGES:
    setattr(OverGloo, _name, by_gloo(_name))
