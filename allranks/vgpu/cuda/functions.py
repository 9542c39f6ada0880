"""The functions of ``torch._C`` that torch.cuda calls, and that a CPU build lacks."""

import os
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from allranks.vgpu import device_module
from allranks.vgpu.cuda import cards
from allranks.vgpu.machine import Device, Machine, current
from allranks.vgpu.messages import refusal

ARCHITECTURES = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100"  # every card runs one
POOLS = ("all", "large_pool", "small_pool")
COUNTS = ("current", "peak", "allocated", "freed")
STATS = {  # of torch.cuda.memory_stats: which of our counts they are
    "allocated_bytes": "allocated_bytes",
    "active_bytes": "allocated_bytes",
    "requested_bytes": "allocated_bytes",
    "reserved_bytes": "reserved_bytes",
    "allocation": "allocation",
    "active": "allocation",
    "segment": "",
    "inactive_split": "",
    "inactive_split_bytes": "",
}


def visible(count: int, text: str | None) -> list[int]:
    """Return which GPUs CUDA_VISIBLE_DEVICES leaves, in its order.

    As the driver does, it stops at the first word that names no GPU.

    >>> visible(4, "2,0"), visible(4, "0,9,1"), visible(2, ""), visible(2, None)
    ([2, 0], [0], [], [0, 1])
    """
    if text is None:
        return list(range(count))
    found: list[int] = []
    for word in text.split(","):
        word = word.strip()
        if not word.isdigit() or int(word) >= count or int(word) in found:
            break
        found.append(int(word))
    return found


def obey_visible_devices(machine: Machine) -> None:
    """Leave the GPUs that CUDA_VISIBLE_DEVICES names, renumbered from 0.

    As CUDA's runtime does, it looks at the variable once, when it is first asked for
    anything, be it how many GPUs there are.
    """
    if machine.settled:
        return
    machine.settled = True
    chosen = visible(len(machine.built), os.environ.get("CUDA_VISIBLE_DEVICES"))
    machine.devices = [machine.built[index] for index in chosen]
    for index, device in enumerate(machine.devices):
        device.index = index


def get_device_count() -> int:
    """Return how many GPUs there are."""
    machine = current()
    obey_visible_devices(machine)
    return len(machine.devices)


def count_by_nvml() -> int:
    """Return how many GPUs the variable leaves now, as torch does without CUDA."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible(len(current().built), text))


def in_bad_fork() -> bool:
    """Tell whether a parent that used the GPUs has forked this process."""
    return current().user not in (None, os.getpid())


def init() -> None:
    """Take the GPUs into use; from now on CUDA_VISIBLE_DEVICES is not read any more."""
    if not get_device_count():
        raise RuntimeError("No CUDA GPUs are available")
    current().user = os.getpid()


def set_device(index: int) -> None:
    """Make a device this thread's current one, and take CUDA into use; or do nothing.

    Args:
        index: of the device; -1 for nothing.
    """
    torch.cuda._lazy_init()
    if index >= 0:
        device_module.set_device(index)


def exchange_device(index: int) -> int:
    """Set the current device and return the one before; -1 changes nothing."""
    if index < 0:
        return -1
    before = device_module.current_device()
    device_module.set_device(index)
    return before


def memory_stats(index: int) -> dict[str, Any]:
    """Return a device's counts, nested as torch's C++ has them; all in one pool."""
    flat = device_module.memory_stats(index)
    found: dict[str, Any] = {
        name: {
            pool: {
                count: flat.get(f"{ours}.all.{count}", 0) if pool == "all" else 0
                for count in COUNTS
            }
            for pool in POOLS
        }
        for name, ours in STATS.items()
    }
    for name in ("num_alloc_retries", "num_ooms"):
        found[name] = flat[name]
    for name in ("oversize_allocations", "oversize_segments"):
        found[name] = dict.fromkeys(COUNTS, 0)
    return found | {"max_split_size": -1, "num_sync_all_streams": 0}


def memory_snapshot(*args: Any) -> dict[str, list]:
    """Return the allocator's segments: one for each device, with its bytes."""
    segments = [
        {
            "device": device.index,
            "address": 0,
            "total_size": device.reserved,
            "allocated_size": device.allocated,
            "active_size": device.allocated,
            "requested_size": device.allocated,
            "stream": 0,
            "segment_type": "large",
            "blocks": [],
        }
        for device in current().devices
    ]
    return {"segments": segments, "device_traces": [[] for _ in segments]}


def properties(index: int) -> cards.Properties:
    """Return what is known about a device."""
    return properties_of(current().device(index))


def properties_of(device: Device) -> cards.Properties:
    """Return what is known about a device, seen or not."""
    return cards.Properties(device.machine.card, device.capacity, device.physical)


def set_memory_fraction(fraction: float, index: int) -> None:
    """Let a process use a part of a device's memory."""
    device = current().device(index)
    device.limit = int(fraction * device.capacity)


def get_memory_fraction(index: int) -> float:
    """Return the part of a device's memory that the process may use."""
    device = current().device(index)
    return (device.limit or device.capacity) / device.capacity


class Cudart:
    """The few functions of CUDA's runtime that scripts call through torch."""

    class cudaError(int):
        """Return codes."""

        success = 0

    @staticmethod
    def cudaMemGetInfo(device: int = 0) -> tuple[int, int]:
        """Return a device's free and total bytes."""
        return device_module.mem_get_info(device)

    @staticmethod
    def cudaProfilerStart() -> int:
        """Do nothing, since there is no CUDA to profile."""
        return 0

    cudaProfilerStop = cudaProfilerStart

    @staticmethod
    def cudaHostRegister(address: int, num_bytes: int, flags: int = 0) -> int:
        """Do nothing, since pinning is a mark here."""
        return 0

    @staticmethod
    def cudaHostUnregister(address: int) -> int:
        """Do nothing."""
        return 0

    @staticmethod
    def cudaDeviceSynchronize() -> int:
        """Wait for the current device."""
        device_module.synchronize()
        return 0

    @staticmethod
    def cudaGetErrorString(code: int) -> str:
        """Name a return code."""
        return "no error" if code == 0 else f"CUDA error {int(code)}"

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(refusal(f"torch.cuda.cudart().{name}"))


def _stream_data(index: int) -> tuple[int, int, int]:
    from allranks.vgpu.cuda import streams

    stream = streams.current_stream(None if index < 0 else index)
    return stream.stream_id, stream.device_index, stream.device_type


def _set_sync_debug_mode(mode: int) -> None:
    if mode:
        warnings.warn(
            "the rehearsal's report names what synchronizes: set_sync_debug_mode is "
            "passed over",
            stacklevel=3,
        )


FUNCTIONS: dict[str, Callable] = {
    "_cuda_init": init,
    "_cuda_getDeviceCount": get_device_count,
    "_cuda_isInBadFork": in_bad_fork,
    "_cuda_setDevice": set_device,
    "_cuda_getDevice": device_module.current_device,
    "_cuda_exchangeDevice": exchange_device,
    "_cuda_maybeExchangeDevice": exchange_device,
    "_cuda_canDeviceAccessPeer": lambda one, other: one != other,
    "_cuda_synchronize": lambda: device_module.synchronize(),
    "_cuda_memoryStats": memory_stats,
    "_cuda_resetPeakMemoryStats": device_module.reset_peak_memory_stats,
    "_cuda_resetAccumulatedMemoryStats": device_module.reset_accumulated_memory_stats,
    "_cuda_memorySnapshot": memory_snapshot,
    "_cuda_record_memory_history_legacy": lambda *args: None,
    "_cuda_record_memory_history": lambda *args, **kwargs: None,
    "_cuda_emptyCache": device_module.empty_cache,
    "_cuda_setMemoryFraction": set_memory_fraction,
    "_cuda_getMemoryFraction": get_memory_fraction,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    "_cuda_getAllocatorBackend": lambda: "native",
    "_cuda_getCurrentStream": _stream_data,
    "_cuda_getDefaultStream": lambda index: (0, current().device(index).index, 1),
    "_cuda_getCurrentBlasHandle": lambda: 0,
    "_cuda_getCurrentRawStream": lambda index: 0,
    "_cuda_getArchFlags": lambda: ARCHITECTURES,
    "_cuda_getCompiledVersion": lambda: 12080,
    "_cuda_get_sync_debug_mode": lambda: 0,
    "_cuda_set_sync_debug_mode": _set_sync_debug_mode,
    "_cuda_ipc_collect": lambda: None,
    "_cuda_sleep": lambda cycles: None,
    "_cuda_hasPrimaryContext": lambda index: True,
    "_cuda_clearCublasWorkspaces": lambda: None,
}
