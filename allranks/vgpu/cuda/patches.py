"""The named places where torch has to be told that virtual GPUs are CUDA devices.

There is no global mode: each entry of ``patches`` replaces one name of torch while
devices of the kind "cuda" are plugged in. ``plug_in`` adds them to those of all virtual
GPUs, and ``unplug`` puts all back.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import profiler

from allranks.vgpu import generators, storages
from allranks.vgpu.cuda import (
    dtensors,
    functions,
    graphs,
    nvml,
    refused,
    streams,
    tensor_types,
    tools,
    torch_device,
    tuning,
)
from allranks.vgpu.machine import Where, current, is_virtual
from allranks.vgpu.patcher import Entry
from allranks.vgpu.tensor import VirtualTensor


def to_cuda(
    self: torch.Tensor,
    device: Where = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Copy to a GPU, by default to the current one."""
    torch.cuda._lazy_init()
    if isinstance(device, (str, torch.device)) and not is_virtual(torch.device(device)):
        raise RuntimeError(f"Invalid device, must be cuda device: {device}")
    target = torch.device(str(current().device(device)))
    return self.to(target, non_blocking=non_blocking, memory_format=memory_format)


def is_cuda(self: VirtualTensor) -> bool:
    """Tell whether it is on a device that is called cuda."""
    return self._home.machine.kind == "cuda" and not self.is_cpu


def accelerator(check_available: bool = False) -> torch.device:
    """Return the accelerator's type."""
    return torch.device("cuda")


class Nvtx:
    """torch.cuda.nvtx's C functions: marks for a profiler that is not there."""

    depth = 0

    def rangePushA(self, message: str) -> int:
        """Open a range; return its depth."""
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:
        """Close a range; return the depth that is left."""
        self.depth -= 1
        return self.depth

    def rangeStartA(self, message: str) -> int:
        """Start a range; return its handle."""
        return 0

    def rangeEnd(self, handle: int) -> None:
        """End a range."""

    def markA(self, message: str) -> None:
        """Mark a moment."""


def default_generators() -> tuple[generators.DeviceGenerator, ...]:
    """Return the generators of all devices."""
    return tuple(generators.default(device) for device in current().devices)


def initialize() -> None:
    """Take the GPUs into use, and do what CUDA's C++ does then."""
    functions.init()
    torch.cuda.default_generators = default_generators()


def patches(add: Callable[[Iterable[Entry]], None]) -> Iterator[Entry]:
    """Yield owner, name and what takes its place.

    Args:
        add: applies more patches later; DTensor's wait for the first mesh.
    """
    for name, function in functions.FUNCTIONS.items():
        yield torch._C, name, function
    yield torch._C, "_cuda_init", initialize
    yield torch._C, "_has_cuda", True
    yield torch.version, "cuda", "12.8"
    yield torch.cuda, "_cudart", functions.Cudart()
    yield torch.cuda, "_is_in_bad_fork", functions.in_bad_fork
    # As in a fresh process: torch.cuda initializes itself at its first use, and then
    # asks the functions above for the devices.
    yield torch.cuda, "_initialized", False
    yield torch.cuda, "_cached_device_count", None
    yield torch.cuda, "_queued_calls", []
    yield torch.cuda, "_device_count_nvml", functions.count_by_nvml
    yield torch.cuda, "default_generators", ()
    yield torch.cuda, "_get_device_properties", functions.properties
    yield torch.cuda, "_exchange_device", functions.exchange_device
    yield torch.cuda, "_maybe_exchange_device", functions.exchange_device
    # torch.cuda.streams defines these classes, and others import them by their names.
    for owner in torch.cuda, torch.cuda.streams:
        yield owner, "Stream", streams.Stream
        yield owner, "Event", streams.Event
    yield torch, "Stream", streams.Stream
    yield torch, "Event", streams.Event
    for name in "current_stream", "default_stream", "set_stream":
        yield torch.cuda, name, getattr(streams, name)
    yield torch.cuda, "StreamContext", streams.StreamContext
    yield torch.cuda, "stream", streams.StreamContext
    yield from graphs.PATCHES
    yield from tuning.PATCHES
    yield from tensor_types.PATCHES
    yield from refused.patches()
    yield from nvml.PATCHES
    yield torch.cuda.nvtx, "_nvtx", Nvtx()
    yield torch.Tensor, "cuda", to_cuda
    yield VirtualTensor, "cuda", to_cuda
    yield VirtualTensor, "is_cuda", property(is_cuda)
    yield torch, "device", torch_device.device
    yield torch, "compile", tools.compile_nothing
    yield nn.Module, "compile", tools.module_compile
    yield torch.UntypedStorage, "cuda", storages.to_cuda
    yield profiler.profile, "__init__", tools.profile
    yield profiler, "emit_nvtx", tools.emit_nvtx
    yield torch.export, "export", tools.export
    yield torch._C, "_get_accelerator", accelerator
    yield torch._C, "_accelerator_getAccelerator", accelerator
    yield torch.accelerator, "current_accelerator", accelerator
    yield torch.accelerator, "is_available", torch.cuda.is_available
    yield torch.accelerator, "device_count", torch.cuda.device_count
    yield torch.accelerator, "current_stream", streams.current_stream
    yield torch.accelerator, "set_stream", streams.set_stream
    if dist.is_available():
        yield dtensors.DeviceMesh, "__init__", dtensors.mesh_maker(add)
        yield dist.distributed_c10d, "_get_pg_default_device", _default_device
        yield from _classes_of_nccl2()


def _classes_of_nccl2() -> Iterator[Entry]:
    """Yield refusals of what torch 2.15 makes for "nccl2" and "nccl-lazy".

    Without a driver their constructors raise, and then their destructors abort.
    """
    if hasattr(dist.distributed_c10d, "_nccl2_device"):
        for name in "ProcessGroupNCCL2", "ProcessGroupNCCLLazy":
            for owner in dist, dist.distributed_c10d:
                yield owner, name, refused.refuse(f"torch.distributed.{name}")


def _default_device(group: Any = None) -> torch.device:
    return torch.device("cuda")
