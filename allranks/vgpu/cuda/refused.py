"""What only a real GPU can do, by name: each refuses in one sentence."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from allranks.vgpu.messages import refusal
from allranks.vgpu.patcher import Entry
from allranks.vgpu.tensor import VirtualTensor

NAMES = {  # of torch's modules
    "torch.cuda": (
        "ExternalStream",
        "CUDAPluggableAllocator",
        "GreenContext",
        "caching_allocator_alloc",
        "caching_allocator_delete",
        "change_current_allocator",
        "export_dot",
        "export_graph_data",
        "get_stream_from_external",
    ),
    "torch.cuda.gds": ("GdsFile", "gds_register_buffer", "gds_deregister_buffer"),
    "torch.cuda.graphs": tuple(  # hooks that look into CUDA's own graphs
        n for n in vars(torch.cuda.graphs) if n.startswith("register_graph_")
    ),
    "torch.cuda.green_contexts": ("SMPartition",),
    "torch.cuda.jiterator": ("_create_jit_fn", "_create_multi_output_jit_fn"),
    "torch.cuda.nccl": (
        "all_gather",
        "all_reduce",
        "broadcast",
        "init_rank",
        "reduce",
        "reduce_scatter",
        "unique_id",
    ),
    "torch.cuda.sparse": tuple(
        n for n in vars(torch.cuda.sparse) if n[-6:] == "Tensor"
    ),
    "torch.cuda.tunable": ("mgpu_tune_gemm_in_file", "tune_gemm_in_file"),
    "torch.accelerator": ("Graph",),
}
HOST_ONLY = {  # what makes tensors of other layouts, or hands their memory on
    torch: (
        "sparse_coo_tensor",
        "sparse_csr_tensor",
        "sparse_compressed_tensor",
        "to_dlpack",
    ),
    torch.nested: ("as_nested_tensor", "nested_tensor", "nested_tensor_from_jagged"),
    torch.utils.dlpack: ("to_dlpack",),
}
ALSO_IN = (
    "torch.cuda.graphs",
    "torch.cuda.green_contexts",
    "torch.cuda.memory",
    "torch.cuda.streams",
)
MAKERS = ("create", "from_device")  # methods of a class that make one without a call
_own_fake_device = FakeTensor._normalize_fake_device


def refuse(name: str) -> Callable[..., NoReturn]:
    """Return a function that refuses to be called, in a sentence with its name."""

    def run(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(refusal(name))

    return run


def _stand_in(name: str, own: Any) -> Callable[..., NoReturn]:
    """Return what refuses in place of a function, or of a class and its makers."""
    stand_in = refuse(name)
    for maker in MAKERS:
        if hasattr(own, maker):
            setattr(stand_in, maker, refuse(f"{name}.{maker}"))
    return stand_in


def _host_only(name: str, own: Callable) -> Callable:
    """Return a function that refuses tensors on a GPU."""

    @functools.wraps(own)
    def run(*args: Any, **kwargs: Any) -> Any:
        where = torch.device(kwargs.get("device") or "cpu").type
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if where == "cuda" or any(isinstance(x, VirtualTensor) for x in leaves):
            raise NotImplementedError(refusal(f"{name} on cuda"))
        return own(*args, **kwargs)

    return run


def fake_device(device: torch.device) -> torch.device:
    """Return where a fake tensor is.

    Raises:
        NotImplementedError: for a GPU: C++ would look for CUDA, and end the process.
    """
    if device.type == "cuda":
        raise NotImplementedError(refusal("a FakeTensorMode with tensors on cuda"))
    return _own_fake_device(device)


def patches() -> Iterator[Entry]:
    """Yield owner, name and what takes its place."""
    for module, names in NAMES.items():
        for name in names:
            full = f"{module}.{name.removeprefix('_')}"
            for owner in map(importlib.import_module, {module, *ALSO_IN}):
                if name in vars(owner):
                    yield owner, name, _stand_in(full, vars(owner)[name])
    for owner, names in HOST_ONLY.items():
        for name in names:
            full = f"{owner.__name__}.{name}"
            yield owner, name, _host_only(full, getattr(owner, name))
    yield FakeTensor, "_normalize_fake_device", staticmethod(fake_device)
