"""Settings of CUDA's libraries that change speed only: kept, told, without effect."""

from collections.abc import Callable
from typing import Any

import torch

HOST_BYTES = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
SETTINGS = {  # who sets it in torch._C, who tells it, and what it begins with
    "tunableop_enable": ("tunableop_is_enabled", False),
    "tunableop_tuning_enable": ("tunableop_tuning_is_enabled", True),
    "record_untuned_enable": ("record_untuned_is_enabled", False),
    "tunableop_set_max_tuning_duration": ("tunableop_get_max_tuning_duration", 30),
    "tunableop_set_max_tuning_iterations": ("tunableop_get_max_tuning_iterations", 100),
    "tunableop_set_filename": ("tunableop_get_filename", "tunableop_results.csv"),
    "tunableop_set_rotating_buffer_size": ("tunableop_get_rotating_buffer_size", -1),
    "tunableop_set_numerical_check_tolerances": ("_tolerances", False),
    "tunableop_set_cublaslt_requested_algo_count": (
        "tunableop_get_cublaslt_requested_algo_count",
        8,
    ),
    "tunableop_wildcard_fallback_enable": (
        "tunableop_wildcard_fallback_is_enabled",
        False,
    ),
    "set_cudnn_benchmark_limit": ("get_cudnn_benchmark_limit", 10),
    "setCublasWorkspaceSize": ("getCublasWorkspaceSize", 8 * 2**20),
    "setCublasLtWorkspaceSize": ("getCublasLtWorkspaceSize", 2**20),
}
CUDNN = 91002  # the version of cuDNN, as torch's wheels for CUDA 12.8 have it


def _settings() -> dict[str, Callable]:
    """Return a function that sets and one that tells, for each setting."""
    values: dict[str, Any] = {get: value for get, value in SETTINGS.values()}

    def setter(get: str) -> Callable[..., None]:
        def put(value: Any, *more: Any) -> None:
            values[get] = value

        return put

    def getter(get: str) -> Callable[[], Any]:
        return lambda: values[get]

    found: dict[str, Callable] = {}
    for put, (get, _) in SETTINGS.items():
        found[f"_cuda_{put}"], found[f"_cuda_{get}"] = setter(get), getter(get)
    return found


def host_memory_stats() -> dict[str, Any]:
    """Return what the allocator of pinned memory counts, which is not counted here."""
    counts = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    times = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
    found: dict[str, Any] = {name: dict(counts) for name in HOST_BYTES}
    found |= {name: dict(times) for name in ("host_alloc_time", "host_free_time")}
    return found | {"num_host_alloc": 0, "num_host_free": 0}


def _nothing(*args: Any) -> None:
    """Do nothing."""


FUNCTIONS: dict[str, Callable] = _settings() | {
    "_cuda_tunableop_get_results": tuple,
    "_cuda_tunableop_get_validators": tuple,
    "_cuda_tunableop_read_file": lambda name: False,
    "_cuda_tunableop_push_dynamic_dims_mask": _nothing,
    "_cuda_tunableop_pop_dynamic_dims_mask": _nothing,
    "_cuda_hostMemoryStats": host_memory_stats,
    "_cuda_resetAccumulatedHostMemoryStats": _nothing,
    "_cuda_resetPeakHostMemoryStats": _nothing,
    "_cuda_cudaCachingAllocator_enable": _nothing,
    "_cuda_getCurrentSolverHandle": lambda: 0,
    "_host_emptyCache": _nothing,
}


class PlanCache:
    """The cache of FFT plans of a device; nothing is planned here."""

    size = 0
    max_size = 4096

    def clear(self) -> None:
        """Do nothing."""


class PlanCaches(PlanCache):
    """``torch.backends.cuda.cufft_plan_cache``: one for each device."""

    def __getitem__(self, device: Any) -> PlanCache:
        return PlanCache()


def is_acceptable(tensor: torch.Tensor) -> bool:
    """Tell whether cuDNN can work on a tensor here, which it cannot."""
    return False


def can_use_cudnn_attention(params: Any, debug: bool = False) -> bool:
    """Tell that cuDNN attends to nothing here: a CUDA build would ask the driver."""
    return False


PATCHES = [
    *((torch._C, name, function) for name, function in FUNCTIONS.items()),
    (torch._C, "_has_cudnn", True),
    (torch._C, "_can_use_cudnn_attention", can_use_cudnn_attention),
    # torch 2.15 would ask the driver; so it says that each GPU is one domain.
    (torch.cuda.green_contexts, "_is_locality_software_supported", lambda: False),
    (torch.cuda.nccl, "is_available", lambda tensors: False),  # of one process
    (torch.backends.cudnn.m, "version", lambda: CUDNN),
    (torch.backends.cudnn.m, "is_acceptable", is_acceptable),
    (torch.backends.cuda, "cufft_plan_cache", PlanCaches()),
    (torch.backends.cuda, "is_flash_attention_available", lambda: True),
]
