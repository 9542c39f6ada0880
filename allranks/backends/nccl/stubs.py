"""What only NCCL has, beside its collectives: settings, splits, and symmetric memory.

What changes nothing here is accepted; what would need a GPU's memory is refused.
"""

from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from allranks.vgpu.cuda.refused import refuse
from allranks.vgpu.messages import refusal


class Stubs:
    """The methods of a NCCL group that scripts and c10d's own Python call."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Do nothing: ranks outside a new group take no part in it here."""

    def comm_split_count(self) -> int:
        """Return how many communicators were split off: none."""
        return 0

    def _is_initialized(self) -> bool:
        """Tell that the communicator can be used."""
        return True

    def _group_start(self) -> None:
        """Do nothing, as abort needs no batch."""

    _group_end = _group_start

    def _set_enable_nan_check(self, enabled: bool) -> None:
        """Do nothing: numbers are not looked at."""

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing: a call's own timeout holds."""

    def _verify_work_timeout(self, work: Any, timeout: timedelta) -> bool:
        """Tell that a work has the timeout that it was given."""
        return True

    def get_error(self) -> Any:
        """Return that nothing is wrong; errors are raised where they happen."""
        return c10d.ErrorType.SUCCESS

    def register_mem_pool(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: memory is counted without pools."""

    deregister_mem_pool = register_mem_pool

    def _comm_ptr(self) -> NoReturn:
        """Refuse, as there is no communicator of NCCL's."""
        raise NotImplementedError(refusal("the address of a NCCL communicator"))


_symmetric = refuse("torch.distributed._symmetric_memory")
PATCHES = [
    *(
        (c10d._SymmetricMemory, name, staticmethod(_symmetric))
        for name in ("empty_strided_p2p", "rendezvous", "get_mempool_allocator")
    ),
    *(
        (owner, "shrink_group", refuse("torch.distributed.shrink_group"))
        for owner in (dist, distributed_c10d)
    ),
    (
        dist.ProcessGroup,
        "_register_on_completion_hook",
        refuse("ProcessGroup._register_on_completion_hook"),
    ),
    (c10d, "_dump_nccl_trace", refuse("torch.distributed's trace of NCCL")),
    (c10d, "_dump_nccl_trace_json", refuse("torch.distributed's trace of NCCL")),
]
