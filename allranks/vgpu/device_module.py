"""``torch.vgpu``: the functions that ``torch.cuda`` has for CUDA devices."""

import types
from collections import OrderedDict
from typing import Self

import torch

from allranks.vgpu import machine as machines
from allranks.vgpu.machine import Where


class Stream:
    """A stream that does nothing, as each virtual GPU has one and works in order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        """Do nothing, as there is no other stream on the device."""

    def synchronize(self) -> None:
        """Do nothing, as every op has been run when its call returns."""

    def is_capturing(self) -> bool:
        """Tell that no graph is being captured, which torch 2.15's optimizers ask."""
        return False


class _DeviceContext:
    """The context of ``with torch.vgpu.device(1):``, which sets the current device."""

    def __init__(self, device: Where) -> None:
        self.device = device

    def __enter__(self) -> Self:
        self.before = current_device()
        if self.device is not None:
            set_device(self.device)
        return self

    def __exit__(self, *error: object) -> None:
        set_device(self.before)


def is_available() -> bool:
    """Tell whether virtual GPUs are plugged in."""
    return machines.plugged is not None


def device_count() -> int:
    """Return how many virtual GPUs are plugged in."""
    return len(machines.plugged.devices) if is_available() else 0


def current_device() -> int:
    """Return the index of this thread's current device."""
    return machines.current().device().index


def set_device(device: Where) -> None:
    """Make a device this thread's current one, which "vgpu" without an index means."""
    machine = machines.current()
    machine.thread.index = machine.device(device).index


def synchronize(device: Where = None) -> None:
    """Wait for a device, on the estimated clock."""
    machine = machines.current()
    machine.synchronize(machine.device(device))


def memory_allocated(device: Where = None) -> int:
    """Return the bytes that tensors take on a device."""
    return machines.current().device(device).allocated


def max_memory_allocated(device: Where = None) -> int:
    """Return the most bytes that tensors took on a device."""
    return machines.current().device(device).peak


def memory_reserved(device: Where = None) -> int:
    """Return the bytes that a caching allocator would hold on a device."""
    return machines.current().device(device).reserved


def memory_stats(device: Where = None) -> OrderedDict:
    """Return what is counted, by the names that torch.cuda.memory_stats uses.

    There is only one pool, ``all``. Counts that have no meaning here, such as those of
    segments, are left out.
    """
    device = machines.current().device(device)
    bytes_now = {
        "allocated_bytes.all.current": device.allocated,
        "allocated_bytes.all.peak": device.peak,
        "allocated_bytes.all.allocated": device.taken,
        "allocated_bytes.all.freed": device.taken - device.allocated,
        "reserved_bytes.all.current": device.reserved,
        "reserved_bytes.all.peak": device.most_reserved,
        "allocation.all.current": device.num_blocks,
        "num_alloc_retries": 0,
        "num_ooms": device.num_ooms,
    }
    return OrderedDict(sorted(bytes_now.items()))


def reset_accumulated_memory_stats(device: Where = None) -> None:
    """Start to count again what is allocated and freed, and failures."""
    device = machines.current().device(device)
    device.taken, device.num_ooms = device.allocated, 0


def reset_peak_memory_stats(device: Where = None) -> None:
    """Start the peak again at what is allocated now."""
    device = machines.current().device(device)
    device.peak, device.most_reserved = device.allocated, device.reserved


def empty_cache() -> None:
    """Release what is reserved but not allocated, on all devices."""
    for device in machines.current().devices:
        device.reserved = device.allocated


def empty_host_cache() -> None:
    """Do nothing: no pinned memory is kept."""


def get_device_capability(device: Where = None, /) -> dict[str, set[torch.dtype]]:
    """Return the dtypes that a device knows: all."""
    machines.current().device(device)
    known = {thing for thing in vars(torch).values() if isinstance(thing, torch.dtype)}
    return {"supported_dtypes": known}


def max_memory_reserved(device: Where = None) -> int:
    """Return the most bytes that a caching allocator would have held."""
    return machines.current().device(device).most_reserved


def mem_get_info(device: Where = None) -> tuple[int, int]:
    """Return a device's free and total bytes."""
    device = machines.current().device(device)
    return device.capacity - device.reserved, device.capacity


def get_device_name(device: Where = None) -> str:
    """Return a device's name."""
    machines.current().device(device)
    return "Virtual GPU"


def get_device_properties(device: Where = None) -> types.SimpleNamespace:
    """Return a device's name and total_memory in bytes."""
    total = machines.current().device(device).capacity
    return types.SimpleNamespace(name=get_device_name(device), total_memory=total)


def current_stream(device: Where = None) -> Stream:
    """Return the one stream of a device."""
    machine = machines.current()
    return Stream(torch.device(str(machine.device(device))))


def get_rng_state(device: Where = "vgpu") -> torch.Tensor:
    """Return the CPU generator's state, as that makes the random numbers here."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Where = "vgpu") -> None:
    """Set the CPU generator's state."""
    torch.set_rng_state(new_state)


def manual_seed_all(seed: int) -> None:
    """Seed the CPU generator, as that makes the random numbers here."""
    torch.default_generator.manual_seed(int(seed))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast("vgpu")`` may cast to."""
    return [torch.float16, torch.bfloat16]


module = types.ModuleType("torch.vgpu", __doc__)
for _name, _value in list(globals().items()):
    if isinstance(_value, types.FunctionType):
        setattr(module, _name, _value)
module.device = _DeviceContext
module.is_initialized = lambda: True
module._is_in_bad_fork = lambda: False
module.manual_seed = manual_seed_all

# torch.accelerator asks C++, which knows nothing of these devices, so these functions
# take the place of its own.
ACCELERATOR = {
    "set_device_index": set_device,
    "current_device_index": current_device,
    "get_memory_info": mem_get_info,
    "device_index": _DeviceContext,
    "get_device_capability": get_device_capability,
}
for _name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
    ACCELERATOR[_name] = getattr(module, _name)
for _name in ("memory_stats", "reset_accumulated_memory_stats"):
    ACCELERATOR[_name] = getattr(module, _name)
for _name in ("max_memory_reserved", "reset_peak_memory_stats", "empty_cache"):
    ACCELERATOR[_name] = getattr(module, _name)
for _name in ("synchronize", "current_stream", "empty_host_cache"):
    ACCELERATOR[_name] = getattr(module, _name)
