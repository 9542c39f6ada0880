"""Where torch has to find NCCL: all patches, their undoing, and the way in for its ops.

An op of c10d on a virtual tensor comes to the tensor's own dispatch, from Python, from
DDP's reducer and from the functional collectives alike. For groups of ours, it is
carried out by ``collectives``, ``exchanges`` and ``functional``.
"""

import atexit
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import (
    _functional_collectives,
    constants,
    device_mesh,
    distributed_c10d,
)
from torch.utils import _pytree as pytree

from allranks.backends.nccl import (
    calls,
    collectives,
    exchanges,
    factors,
    functional,
    group,
    reducer,
    stubs,
)
from allranks.vgpu import dispatch
from allranks.vgpu.patcher import Patcher
from allranks.vgpu.tensor import VirtualTensor

ProcessGroup, Work = dist.ProcessGroup, dist.Work
VERSION = (2 << 32) | (27 << 16) | 5  # of NCCL, as torch.cuda.nccl.version() reads it
LEFT = (  # what the destructor of PyTorch's ProcessGroupNCCL says
    "WARNING: destroy_process_group() was not called before program exit, which can "
    "leak resources. For more info, please see "
    "https://pytorch.org/docs/stable/distributed.html#shutdown"
)
DEFAULT_TIMEOUT = timedelta(minutes=10)  # of c10d for NCCL
_own_wrap = _functional_collectives._maybe_wrap_tensor
_own_start, _own_end = ProcessGroup._start_coalescing, ProcessGroup._end_coalescing
_patcher = Patcher()


def _start_coalescing(self: ProcessGroup, device: torch.device) -> None:
    """Begin a batch, as batch_isend_irecv does for NCCL."""
    ours = group.of(self)
    _own_start(self, device) if ours is None else ours.begin_batch()


def _end_coalescing(self: ProcessGroup, device: torch.device) -> Any:
    """End a batch; return its work."""
    ours = group.of(self)
    return _own_end(self, device) if ours is None else ours.end_batch()


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Make the group that this rank is in, without the others, as ncclCommSplit does.

    Args:
        parent_pg: the group to split, by default all ranks.
        split_ranks: ranks of the parent, group by group.
        timeout, pg_options, group_desc, backend: as ``dist.new_group`` has them.

    Raises:
        ValueError: if there are no ranks.
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    parent = parent_pg or dist.group.WORLD
    numbers = dist.get_process_group_ranks(parent)
    mine = [part for part in split_ranks if parent.rank() in part]
    if not mine:  # torch 2.15 counts groups, and ranks that count alike stay in step
        distributed_c10d._process_group_name([], use_hashed_name=True)
        return None
    return dist.new_group(
        [numbers[rank] for rank in mine[0]],
        timeout=timeout,
        backend=backend,
        pg_options=pg_options,
        group_desc=group_desc,
        use_local_synchronization=True,
    )


OF_C10D = [
    collectives.allreduce_,
    collectives.allreduce_coalesced_,
    collectives.broadcast_,
    collectives.reduce_,
    collectives._allgather_base_,
    collectives.allgather_,
    collectives.allgather_coalesced_,
    collectives.allgather_into_tensor_coalesced_,
    collectives._reduce_scatter_base_,
    collectives.reduce_scatter_,
    collectives.reduce_scatter_tensor_coalesced_,
    exchanges.gather_,
    exchanges.gather_into_tensor_,
    exchanges.scatter_,
    exchanges.alltoall_base_,
    exchanges.alltoall_,
    exchanges.barrier,
    exchanges.send,
    exchanges.recv_,
    exchanges.recv_any_source_,
    exchanges.monitored_barrier_,
]


def _of_c10d(op: dispatch.Op, function: Callable) -> dispatch.Special:
    """Return how an op of c10d runs: its work goes back to C++ in a box."""
    names = [argument.name for argument in op._schema.arguments]
    place = names.index("process_group")

    def run(args: dispatch.Args, kwargs: dispatch.Kwargs) -> Any:
        ours = group.of(ProcessGroup.unbox(args[place]))
        if ours is None:
            tensors = pytree.arg_tree_leaves(*args[:1])
            sizes = [t.nbytes for t in tensors if isinstance(t, VirtualTensor)]
            calls.tell_others(function.__name__.strip("_"), sum(sizes))
            return NotImplemented
        others = args[:place] + args[place + 1 :]
        made = function(ours, *others, **kwargs)
        if isinstance(made, tuple):
            return made[0], Work.boxed(made[1])
        return made if made is None else Work.boxed(made)

    return run


def _functional(op: dispatch.Op, function: Callable) -> dispatch.Special:
    """Return how a functional collective runs."""
    names = [argument.name for argument in op._schema.arguments]
    place = names.index("group_name")

    def run(args: dispatch.Args, kwargs: dispatch.Kwargs) -> Any:
        named = args[place]
        if isinstance(named, str):
            named = distributed_c10d._resolve_process_group(named)
        elif not isinstance(named, ProcessGroup):
            named = ProcessGroup.unbox(named)
        ours = group.of(named)
        if ours is None:
            return NotImplemented
        return function(*args[:place], ours, *args[place + 1 :], **kwargs)

    return run


def _wait_tensor(args: dispatch.Args, kwargs: dispatch.Kwargs) -> torch.Tensor:
    """Return the tensor itself; a group of gloo's may have to be waited for."""
    torch.ops._c10d_functional.wait_tensor(args[0]._inner)
    return args[0]


def _maybe_wrap_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Wait at once instead of at first use, as an asynchronous tensor would."""
    if isinstance(tensor, VirtualTensor):
        return _wait_tensor((tensor,), {})
    return _own_wrap(tensor)


def _ops() -> dict[dispatch.Op, dispatch.Special]:
    """Return what runs in place of each op."""
    found = {torch.ops._c10d_functional.wait_tensor.default: _wait_tensor}
    for function in OF_C10D:
        if not hasattr(torch.ops.c10d, function.__name__):  # this torch is older
            continue
        op = getattr(torch.ops.c10d, function.__name__).default
        found[op] = _of_c10d(op, function)
    for name, function in functional.OPS.items():
        op = getattr(torch.ops._c10d_functional, name).default
        found[op] = _functional(op, function)
    return found


PATCHES = [
    (distributed_c10d, "_NCCL_AVAILABLE", True),
    *(
        (owner, "ProcessGroupNCCL", group.ProcessGroupNCCL)
        for owner in (dist, distributed_c10d, _distributed_c10d)
    ),
    (distributed_c10d, "default_pg_nccl_timeout", DEFAULT_TIMEOUT),
    (constants, "default_pg_nccl_timeout", DEFAULT_TIMEOUT),
    *(
        (owner, "split_group", split_group)
        for owner in (dist, distributed_c10d, device_mesh)
    ),
    (ProcessGroup, "_register_backend", group.register_backend),
    (ProcessGroup, "_get_sequence_number_for_group", group.sequence_number),
    (ProcessGroup, "_start_coalescing", _start_coalescing),
    (ProcessGroup, "_end_coalescing", _end_coalescing),
    (_functional_collectives, "_maybe_wrap_tensor", _maybe_wrap_tensor),
    *stubs.PATCHES,
    *factors.PATCHES,
    *reducer.PATCHES,
    (torch._C, "_nccl_version", lambda: VERSION),
    (torch._C, "_nccl_version_suffix", lambda: b""),
]


def install() -> None:
    """Give torch the backend "nccl"; a second call does nothing."""
    if not _patcher:
        _patcher.apply(PATCHES)
        dispatch.SPECIAL.update(_ops())
        _choose("_register_builtin_nccl_as_legacy")
        atexit.register(remind)


def _choose(register: str) -> None:
    """Let torch 2.15, which has two classes for "nccl", take the one of before."""
    if hasattr(distributed_c10d, register):
        getattr(distributed_c10d, register)()


def remind() -> None:
    """Warn, as PyTorch does at exit, of a group that was not destroyed."""
    if dist.is_initialized() and group.of(dist.group.WORLD) is not None:
        print(f"[rank{dist.get_rank()}]: Warning: {LEFT}", file=sys.stderr)


def uninstall() -> None:
    """Undo what ``install`` did; a second call does nothing."""
    atexit.unregister(remind)
    _patcher.undo()
    _choose("_register_builtin_nccl_backend")
    for op in _ops():
        dispatch.SPECIAL.pop(op, None)
