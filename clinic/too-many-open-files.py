r"""Too many open files: a list keeps the loader's batches.

class: data
symptom: crash
runs on: one process
chapter: ch5_ddp
signature: RuntimeError: Too many open files\. Communication with the workers

You see: `Too many open files. Communication with the workers is no longer possible`, or
`received 0 items of ancdata`, after a few hundred batches.

Cause: on Linux a worker hands a batch over as an open file descriptor of shared memory.
It stays open as long as the tensor lives, so a program that collects batches (outputs
of a validation, a list of labels) collects descriptors, until it reaches `ulimit -n`.

Cure: copy what you keep, `batch.clone()`; or share by name with
`torch.multiprocessing.set_sharing_strategy("file_system")`; or raise `ulimit -n`.

Next time: `ls /proc/PID/fd | wc -l` while it runs: does it grow with the batches?

Links: https://github.com/pytorch/pytorch/issues/11201 (batches kept in a list exhaust the descriptors)
https://github.com/facebookresearch/detectron2/issues/3953 (the same message during a validation)
"""

# %% given
import os
import resource

from torch.utils.data import DataLoader

# A limit near at hand, 40 more files; else it is 1024 or more.
taken = {int(fd) for fd in os.listdir("/proc/self/fd")}
free = [fd for fd in range(4096) if fd not in taken]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (free[40], hard))
workers = {"num_workers": 1, "multiprocessing_context": "fork"}
loader = DataLoader(torch.arange(80.0), **workers)

# %% broken
kept = []
for batch in loader:
    kept.append(batch)
print(len(kept), "batches")

# %% fixed
kept = []
for batch in loader:
    kept.append(batch.clone())
print(len(kept), "batches")

# %% signs
# Too many open files\. Communication with the workers is no longer possible
# items of ancdata
# maybe: [Tt]oo many open files
# : Too many open files \(24\)
# with: DataLoader|dataloader|data_loader|ultiprocessing|num_workers|of ancdata
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
# with: ^\W*(?:OSError: )?\[Errno 24\] Too many open files\W*$
