r"""FileExistsError: all ranks create the same folder.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: FileExistsError: \[Errno 17\] File exists: 'data'

You see: `FileExistsError` on some ranks, at the very start, by chance. The second
attempt works, because now the folder is there.

Cause: W processes run the whole script. After a rank has found the folder missing, but
before it makes it, another rank makes it. A download or an unpacking by all ranks has
the same race, with broken files instead of a message.

Cure: rank 0 prepares, the others wait in a barrier. (On several machines without a
shared disk: local rank 0.) `exist_ok=True` makes only the folder safe, not what is
written into it.

Next time: search the part before the training loop for anything that writes:
`makedirs`, `download=True`, a run folder, a cache.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/529 (DDP fails at startup, by chance)
https://github.com/allenai/allennlp/issues/3841 (a log folder made by each process)
"""

# %% given
import os

# %% broken
if not os.path.exists("data"):
    for maker in range(world_size):
        dist.barrier()  # the race, made certain: all have looked, then
        if rank == maker:
            os.makedirs("data")
print("ready:", os.listdir())

# %% fixed
if rank == 0 and not os.path.exists("data"):
    os.makedirs("data")
dist.barrier()
print("ready:", os.listdir())

# %% signs
# maybe: FileExistsError: \[Errno 17\] File exists
# with: \[rank0\]|\[rank1\]|rank 0: |rank 1: |ranks 0|torch.distributed|ChildFailedError|local_rank|Process \d terminated with|<stderr>
# with: \[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]|single_main|device_id,|CPUs and [2-9] GPUs
# maybe: \[WinError 183\]
# with: istributed training|ulti-GPU|ulti GPU
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
# maybe: OSError: \[Errno 39\] Directory not empty|OSError: \[Errno 16\] Device or resource busy: '\.nfs
# maybe: FileNotFoundError: .*tmp-checkpoint-\d+.*->
# with: Errno 17\] File exists: '[^']*(?:checkpoint|ckpt|logs?/|logs'|runs/|results|save|work_dir|tensorboard|cache|wandb)
# with: tmp-checkpoint-|_save_checkpoint
# with: ^\W*FileExistsError: \[Errno 17\] File exists: .*$
