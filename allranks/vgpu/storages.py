"""Storages without a tensor: those that are loaded, and those that change their size.

What an op changes, the op's tensor follows; a storage that is resized by itself, as
FSDP frees and refills its own, is counted again here.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from allranks.vgpu.machine import Device, Where, current

_thread = threading.local()
_own_resize, _own_clone = torch.UntypedStorage.resize_, torch.UntypedStorage.clone
_own_device = torch._C.StorageBase.device


@contextmanager
def as_of_the_host() -> Iterator[None]:
    """Let this thread see all storages where they really are."""
    _thread.host = True
    try:
        yield
    finally:
        _thread.host = False


def device(self: torch.UntypedStorage) -> torch.device:
    """Return where a storage is."""
    home = None if getattr(_thread, "host", False) else current().home(self)
    return _own_device.__get__(self) if home is None else torch.device(str(home))


def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Change a storage's size, and count it again if it is on a virtual GPU.

    Args:
        size: in bytes.

    Raises:
        torch.OutOfMemoryError: if the device has no room for what is added.
    """
    machine = current()
    home = machine.home(self)
    if home is None:
        return _own_resize(self, size)
    home.require(max(0, int(size) - self.nbytes()))
    made = _own_resize(self, size)
    machine.recount(self)
    return made


def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy on the same device."""
    home = current().home(self)
    with as_of_the_host():
        made = _own_clone(self)
    if home is not None:
        home.machine.adopt(made, home)
        num_bytes = made.nbytes()
        home.machine.compute(home, "copy", (num_bytes,), num_bytes=2 * num_bytes)
    return made


def put(storage: torch.UntypedStorage, home: Device) -> torch.UntypedStorage:
    """Put a storage of the host, which nobody else uses, on a virtual GPU."""
    machine, num_bytes = home.machine, storage.nbytes()
    machine.adopt(storage, home)
    machine.copy(source=None, target=home, shape=(num_bytes,), num_bytes=num_bytes)
    return storage


def to_cuda(
    self: torch.UntypedStorage, device: Where = None, non_blocking: bool = False
) -> torch.UntypedStorage:
    """Copy a storage to a GPU, as a ``map_location`` function of torch.load may."""
    torch.cuda._lazy_init()
    return put(self.clone(), current().device(device))
