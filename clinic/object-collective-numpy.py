r"""Numpy is not available: object collectives need it.

class: process group
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: RuntimeError: Numpy is not available

You see: in a fresh environment, `all_gather_object`, `broadcast_object_list` or a
distributed checkpoint fails on every rank, while the same code without them works.

Cause: to unpickle what arrived, torch turns a tensor of bytes into a numpy array. numpy
is not among torch's requirements, so `pip install torch` does not install it. A numpy
that torch was not built for counts as missing, too.

Cure: `pip install numpy`, and write it into your requirements. For numbers, send
tensors: that needs neither pickle nor numpy.

Next time: `python -c "import torch; torch.ones(1).numpy()"`, and look above for
"Failed to initialize NumPy" at the import of torch.

Links: https://github.com/microsoft/Tutel/issues/211 (a distributed example, the warning, and numpy missing)
https://github.com/pytorch/pytorch/pull/150815 (the steps of an object collective)
"""

# %% given
import sys
from pathlib import Path

Path("without_numpy.py").write_text(
    """import atexit, os, sys

class Hidden:
    def find_spec(name, *where):
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Hidden)
atexit.register(os._exit, 1)  # at once: gloo may abort a process that ends by itself
"""
)
sys.path.insert(0, "")

# %% broken: python train.py
import without_numpy  # hides it, as a fresh environment does
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
steps = [None]
dist.all_gather_object(steps, 10)
print("steps:", steps)

# %% fixed
import without_numpy  # hides it, as a fresh environment does
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
steps = [torch.zeros(1, dtype=torch.int64)]
dist.all_gather(steps, torch.tensor([10]))
print("steps:", torch.cat(steps).tolist())

# %% signs
# maybe: RuntimeError: Numpy is not available
# maybe: Failed to initialize NumPy: No module named|umpy is not available
# maybe: A module that was compiled using NumPy 1\.x cannot be run in NumPy
# with: distributed_c10d|(?:gather|broadcast|scatter)_object|_object_to_tensor|_tensor_to_object
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
