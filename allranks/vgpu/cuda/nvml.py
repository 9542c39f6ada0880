"""``pynvml``: what NVIDIA's management library says of virtual GPUs.

As NVML does, it numbers all GPUs, whatever CUDA_VISIBLE_DEVICES leaves. Memory in use
is this process's, because another one's is not known here. What a sensor would measure
(use, heat, power, clocks) is 0, and one line on stderr says so.
"""

import os
import sys
import types
from typing import Any, NoReturn

import torch

from allranks.vgpu.cuda import functions
from allranks.vgpu.machine import Device, current
from allranks.vgpu.messages import say_once

DRIVER = "570.0"


class NVMLError(Exception):
    """What NVML raises; ``value`` is its code."""

    def __init__(self, value: int, text: str) -> None:
        super().__init__(text)
        self.value = value


class NVMLError_InvalidArgument(NVMLError):
    """There is no such GPU."""


class NVMLError_DriverNotLoaded(NVMLError):
    """There is no driver; never raised here."""


class NVMLError_NotSupported(NVMLError):
    """The GPU has no such function; never raised here."""


def _values(**values: Any) -> types.SimpleNamespace:
    """Return a structure with some fields."""
    return types.SimpleNamespace(**values)


def _not_measured(*args: Any) -> int:
    """Return 0 for what a sensor would measure, and say so once."""
    say_once("a virtual GPU's use, temperature, power and clocks are not measured: 0")
    return 0


def nvmlDeviceGetCount() -> int:
    """Return how many GPUs are built in."""
    return len(current().built)


def nvmlDeviceGetHandleByIndex(index: int) -> Device:
    """Return the handle of a GPU, by its number among all.

    Raises:
        NVMLError_InvalidArgument: if there is none.
    """
    built = current().built
    if not 0 <= int(index) < len(built):
        raise NVMLError_InvalidArgument(2, f"Invalid Argument: GPU {index}")
    return built[int(index)]


def nvmlDeviceGetHandleByUUID(uuid: str | bytes) -> Device:
    """Return the handle of a GPU, by its UUID.

    Raises:
        NVMLError_InvalidArgument: if there is none.
    """
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    for device in current().built:
        if nvmlDeviceGetUUID(device) == text:
            return device
    raise NVMLError_InvalidArgument(2, f"Invalid Argument: {text}")


def nvmlDeviceGetUUID(handle: Device) -> str:
    """Return a GPU's UUID."""
    return f"GPU-{functions.properties_of(handle).uuid}"


def nvmlDeviceGetName(handle: Device) -> str:
    """Return a GPU's name."""
    return handle.machine.card.name


def nvmlDeviceGetIndex(handle: Device) -> int:
    """Return a GPU's number among all."""
    return handle.physical


def nvmlDeviceGetMemoryInfo(handle: Device, version: Any = None) -> Any:
    """Return total, free and used bytes; what other processes use is not known."""
    total, used = handle.machine.capacity, handle.reserved
    return _values(total=total, free=total - used, used=used)


def nvmlDeviceGetComputeRunningProcesses(handle: Device) -> list[Any]:
    """Return this process, if it uses the GPU."""
    if not handle.reserved:
        return []
    return [_values(pid=os.getpid(), usedGpuMemory=handle.reserved)]


def nvmlDeviceGetCudaComputeCapability(handle: Device) -> tuple[int, int]:
    """Return major and minor."""
    return handle.machine.card.capability


def nvmlDeviceGetUtilizationRates(handle: Device) -> Any:
    """Return the percentages of time in which the GPU worked, which are 0."""
    return _values(gpu=_not_measured(), memory=0)


def nvmlSystemGetDriverVersion() -> str:
    """Return the driver's version."""
    return DRIVER


def nvmlSystemGetCudaDriverVersion() -> int:
    """Return the newest CUDA that the driver knows, 12080 for 12.8."""
    return 12080


def _nothing(*args: Any) -> None:
    """Do nothing."""


def missing(name: str) -> NoReturn:
    """Raise, for a function that is not here."""
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(
        f"pynvml.{name} is not rehearsed: leave it out of the rehearsal, for example "
        "behind a flag of your script"
    )


module = types.ModuleType("pynvml", __doc__)
for _name, _value in list(globals().items()):
    if _name.startswith(("nvml", "NVML")):
        setattr(module, _name, _value)
for _name in "nvmlInit", "nvmlInitWithFlags", "nvmlShutdown":
    setattr(module, _name, _nothing)
for _name in "Temperature", "PowerUsage", "EnforcedPowerLimit", "ClockInfo":
    setattr(module, f"nvmlDeviceGet{_name}", _not_measured)
for _name in "MaxClockInfo", "FanSpeed", "TotalEnergyConsumption":
    setattr(module, f"nvmlDeviceGet{_name}", _not_measured)
module.nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses
module.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []
module.NVML_TEMPERATURE_GPU = module.NVML_CLOCK_GRAPHICS = 0
module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = 1, 2
module.nvmlMemory_v2 = 2
module.__getattr__ = missing
PATCHES = [
    (sys.modules, "pynvml", module),
    (torch.cuda, "pynvml", module),
    (torch.cuda, "_HAS_PYNVML", True),
]
