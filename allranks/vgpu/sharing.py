"""Tensors that go to another process, through a queue or an argument of ``spawn``.

On a GPU, the other process opens the same memory (CUDA IPC). Here it is shared memory
of the host, and the receiver's tensor is on the device of the same number. What it
opens is not counted there, as on a GPU, since its allocator has not made it.
"""

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import torch
from torch.multiprocessing import reductions

from allranks.vgpu import storages
from allranks.vgpu.machine import current
from allranks.vgpu.tensor import VirtualTensor


def send(tensor: VirtualTensor) -> tuple[Callable, tuple]:
    """Return how to rebuild a tensor in another process, for its pickler.

    Raises:
        RuntimeError: as torch, if the tensor has come out of a computation.
    """
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
            "since autograd does not support crossing process boundaries.  If you "
            "just want to transfer the data, call detach() on the tensor before "
            "serializing (e.g., putting it on the queue)."
        )
    machine = tensor._home.machine
    machine.check_plugged_in(tensor._home)
    inner = tensor._inner
    with storages.as_of_the_host():
        memory = reductions.reduce_storage(inner.untyped_storage())
    view = inner.storage_offset(), inner.shape, inner.stride()
    kind = tensor._is_parameter(), tensor.requires_grad
    return receive, (memory, inner.dtype, view, tensor._home.physical, *kind)


def receive(
    memory: tuple[Callable, tuple],
    dtype: torch.dtype,
    view: tuple,
    physical: int,
    is_param: bool,
    needs_grad: bool,
) -> torch.Tensor:
    """Rebuild a tensor that another process has sent."""
    machine = current()
    home = machine.built[physical]
    storage = memory[0](*memory[1])
    machine.borrow(storage, home)
    inner = torch.empty(0, dtype=dtype, device="cpu").set_(storage, *view)
    made = VirtualTensor(inner, home)
    if is_param:
        return torch.nn.Parameter(made, needs_grad)
    return made.requires_grad_(needs_grad)


def register() -> None:
    """Let queues and pipes of multiprocessing know how to send a virtual tensor."""
    ForkingPickler.register(VirtualTensor, send)
