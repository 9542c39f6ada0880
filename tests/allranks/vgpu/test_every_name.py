"""Every public name of torch.cuda and its like works, or refuses in one sentence.

The test walks ``dir()``, so that no name of a new torch is forgotten: one that needs
arguments fails here until it has a row in ``CALLS``.
"""

import importlib
import types
from typing import Any

import pytest
import torch

from allranks import vgpu
from allranks.backends import nccl

MODULES = (
    "torch.cuda",
    "torch.cuda.amp",
    "torch.cuda.comm",
    "torch.cuda.gds",
    "torch.cuda.graphs",
    "torch.cuda.green_contexts",
    "torch.cuda.jiterator",
    "torch.cuda.memory",
    "torch.cuda.nccl",
    "torch.cuda.nvtx",
    "torch.cuda.profiler",
    "torch.cuda.random",
    "torch.cuda.sparse",
    "torch.cuda.streams",
    "torch.cuda.tunable",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.accelerator",
    "torch.amp",
)
ELSEWHERE = {torch.Tensor, torch.types.Storage}  # which modules import for their hints
OF_NO_USE = {  # helpers of torch's own that nobody calls
    "cast",
    "classproperty",
    "deprecated",
    "lru_cache",
    "cache",
    "signature",
    "ContextProp",
    "CudnnModule",
    "PropModule",
    "cuFFTPlanCacheAttrContextProp",
    "cuFFTPlanCache",
    "SDPBackend",
    "SDPAParams",
    "cudaStatus",
    "CudaError",
}


def ones(index: int = 0) -> torch.Tensor:
    """Return two numbers on a GPU."""
    return torch.ones(2, device=f"cuda:{index}")


def attention() -> Any:
    """Return what torch.backends.cuda is asked about."""
    q = torch.ones(1, 1, 4, 8, device="cuda")
    return torch.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False)


CALLS = {  # the arguments of what needs some
    "CUDAPluggableAllocator": lambda: ("x.so", "get", "free"),
    "ExternalStream": lambda: (0,),
    "StreamContext": lambda: (None,),
    "allow_fp16_bf16_reduction_math_sdp": lambda: (False,),
    "autocast": lambda: ("cuda",),
    "all_gather": lambda: ([ones()], [ones()]),
    "all_reduce": lambda: ([ones()],),
    "caching_allocator_alloc": lambda: (8,),
    "caching_allocator_delete": lambda: (0,),
    "caching_allocator_enable": lambda: (True,),
    "can_device_access_peer": lambda: (0, 1),
    "can_use_cudnn_attention": lambda: (attention(),),
    "can_use_efficient_attention": lambda: (attention(),),
    "can_use_flash_attention": lambda: (attention(),),
    "change_current_allocator": lambda: (None,),
    "check_error": lambda: (0,),
    "device": lambda: (1,),
    "device_index": lambda: (1,),
    "device_of": lambda: (ones(1),),
    "enable_cudnn_sdp": lambda: (True,),
    "enable_flash_sdp": lambda: (True,),
    "enable_math_sdp": lambda: (True,),
    "enable_mem_efficient_sdp": lambda: (True,),
    "get_stream_from_external": lambda: (0,),
    "GdsFile": lambda: ("file", 0),
    "gds_deregister_buffer": lambda: (ones().untyped_storage(),),
    "gds_register_buffer": lambda: (ones().untyped_storage(),),
    "graph": lambda: (torch.cuda.CUDAGraph(),),
    "init_rank": lambda: (1, b"", 0),
    "is_acceptable": lambda: (ones(),),
    "is_autocast_available": lambda: ("cuda",),
    "make_graphed_callables": lambda: (torch.nn.Linear(2, 2).cuda(), (ones(),)),
    "manual_seed": lambda: (1,),
    "manual_seed_all": lambda: (1,),
    "mark": lambda: ("here",),
    "mgpu_tune_gemm_in_file": lambda: ("file", 1),
    "range": lambda: ("step",),
    "range_end": lambda: (torch.cuda.nvtx.range_start("step"),),
    "range_push": lambda: ("step",),
    "range_start": lambda: ("step",),
    "reduce": lambda: ([ones()],),
    "reduce_add": lambda: ([ones(), ones(1)],),
    "reduce_add_coalesced": lambda: ([[ones()], [ones(1)]],),
    "reduce_scatter": lambda: ([ones()], [ones()]),
    "scatter": lambda: (ones(), [0, 1]),
    "set_cublaslt_requested_algo_count": lambda: (1,),
    "set_device": lambda: (1,),
    "set_device_idx": lambda: (1,),
    "set_device_index": lambda: (1,),
    "set_filename": lambda: ("file",),
    "set_max_tuning_duration": lambda: (1,),
    "set_max_tuning_iterations": lambda: (1,),
    "set_numerical_check_tolerances": lambda: (True,),
    "set_per_process_memory_fraction": lambda: (0.5,),
    "set_rng_state": lambda: (torch.cuda.get_rng_state(),),
    "set_rng_state_all": lambda: (torch.cuda.get_rng_state_all(),),
    "set_rotating_buffer_size": lambda: (1,),
    "set_stream": lambda: (torch.cuda.Stream(),),
    "set_sync_debug_mode": lambda: ("default",),
    "stream": lambda: (torch.cuda.Stream(),),
    "torch.amp.custom_bwd": lambda: (print,),
    "torch.cuda.amp.autocast": tuple,
    "custom_bwd": lambda: (print,),
    "custom_fwd": lambda: (print,),
    "torch.cuda.comm.broadcast": lambda: (ones(), [0, 1]),
    "torch.cuda.comm.broadcast_coalesced": lambda: ([ones()], [0, 1]),
    "torch.cuda.comm.gather": lambda: ([ones(), ones(1)],),
    "torch.cuda.nccl.broadcast": lambda: ([ones()],),
    "torch.cuda.nccl.is_available": lambda: ([ones()],),
    "tune_gemm_in_file": lambda: ("file",),
    "use_mem_pool": lambda: (torch.cuda.MemPool(),),
}
NAMED = {name: {"device_type": "cuda"} for name in ("custom_bwd", "custom_fwd")}
REFUSED = {  # what needs a real GPU
    "CUDAPluggableAllocator",
    "ExternalStream",
    "Graph",
    "GdsFile",
    "GreenContext",
    "SMPartition",
    "all_gather",
    "all_reduce",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "export_dot",
    "export_graph_data",
    "gds_deregister_buffer",
    "gds_register_buffer",
    "get_stream_from_external",
    "init_rank",
    "mgpu_tune_gemm_in_file",
    "reduce",
    "reduce_scatter",
    "register_graph_capture_end_hook",
    "register_graph_capture_start_hook",
    "register_graph_destroy_hook",
    "register_graph_instantiate_hook",
    "register_graph_replay_end_hook",
    "register_graph_replay_start_hook",
    "torch.cuda.nccl.broadcast",
    "tune_gemm_in_file",
    "unique_id",
}


def names(module: types.ModuleType) -> dict[str, Any]:
    """Return what a script may call, by name."""
    inside = getattr(module, "m", module)  # of torch.backends.cudnn
    found = {}
    for name in dir(inside):
        thing = getattr(module, name, None)
        home = str(getattr(thing, "__module__", "")).partition(".")[0]
        if name.startswith("_") or name in OF_NO_USE or not callable(thing):
            continue
        if home in ("torch", "allranks") and not isinstance(thing, types.ModuleType):
            found[name] = thing
    return {name: thing for name, thing in found.items() if thing not in ELSEWHERE}


@pytest.fixture
def two():
    """Plug in two GPUs that are called cuda, with NCCL."""
    before = torch.get_default_dtype()
    with vgpu.plugged_in(2, "64 MiB", kind="cuda"):
        nccl.install()
        ones()
        yield
    nccl.uninstall()
    torch.set_default_dtype(before)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", MODULES)
def test_every_name_works_or_refuses(name, two):
    """None fails otherwise, and only what is listed refuses, by its name."""
    refused, wrong = set(), {}
    found = names(importlib.import_module(name))
    listed = {short for short in found if {short, f"{name}.{short}"} & REFUSED}
    for short, thing in found.items():
        full = f"{name}.{short}"
        args = CALLS.get(full, CALLS.get(short, tuple))()
        named = NAMED.get(short, {}) if name == "torch.amp" else {}
        try:
            thing(*args, **named)
        except NotImplementedError as error:
            if short in str(error) and "rehears" in str(error):
                refused.add(short)
            else:
                wrong[full] = repr(error)
        except BaseException as error:
            wrong[full] = repr(error)
    assert wrong == {}
    storages = {short for short in found if short.endswith("Storage")}
    sparse = {*found} if name == "torch.cuda.sparse" else set()
    assert refused - storages - sparse == listed
    assert storages | sparse <= refused
