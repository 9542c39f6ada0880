r"""DataLoader worker is killed by signal: Bus error (shared memory).

class: data
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: RuntimeError: DataLoader worker .* is killed by signal: Bus error

You see: `DataLoader worker (pid …) is killed by signal: Bus error`, in a container,
soon after the start, once `num_workers` is above 0.

Cause: a worker hands its batches over in shared memory, as files in `/dev/shm`. Docker
gives a container only 64 MB of it, which all ranks of a machine share. Creating a file
there succeeds, but writing to a page for which there is no room raises SIGBUS. (Here
the cell sends the signal to the worker; torch's text is the same. PyTorch 2.13 asks for
the room first, so its worker raises `unable to allocate shared memory(shm)` instead.)

Cure: `docker run --shm-size=16g` or `--ipc=host`; in Kubernetes, mount a memory-backed
volume on `/dev/shm`. If you can do neither, use `num_workers=0`, or smaller batches and
less prefetching.

Next time: `df -h /dev/shm` inside the container while it trains.

Links: https://github.com/pytorch/pytorch/issues/5040 (the message had no hint at shared memory then)
https://github.com/hkchengrex/STCN/issues/132 (the same message; insufficient shared memory)
"""

# %% given
import os
import signal

from torch.utils.data import DataLoader

fork = {"multiprocessing_context": "fork"}  # as a script on Linux


def shared_memory_is_full(batches):
    """Play the kernel, which has no page left for what a worker writes."""
    for worker in getattr(batches, "_workers", []):
        os.kill(worker.pid, signal.SIGBUS)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


# %% broken
batches = iter(DataLoader(torch.zeros(4, 2), num_workers=1, **fork))
print("first batch:", next(batches).tolist())
shared_memory_is_full(batches)
print("the others:", [batch.tolist() for batch in batches])

# %% fixed
batches = iter(DataLoader(torch.zeros(4, 2), num_workers=0))
print("first batch:", next(batches).tolist())
shared_memory_is_full(batches)
print("the others:", [batch.tolist() for batch in batches])

# %% signs
# is killed by signal: Bus error
# Unexpected bus error encountered in worker
# dataloader's workers are out of shared memory
# insufficient shared memory|unable to allocate shared memory
# maybe: unable to (?:open|write to|resize|mmap).*(?:shared memory object|file <\S*torch_)
# maybe: Bus error \(core dumped\)
# torch: Signal 7 \(SIGBUS\) received|exitcode *[:=]? *-7\b|died with <Signals\.SIGBUS
# raise your shared memory limit
# maybe: torch_shm_manager
# with: python|DataLoader|shared memory|num_workers
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
# unless: [Tt]oo many open files
# unless: ncclGroupEnd|ncclCommInit|ncclGetUniqueId
# with: </torch_\d+_\d+>
