r"""CUDA-capable device(s) is/are busy: a GPU in exclusive mode.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `CUDA-capable device(s) is/are busy or unavailable` (older: `all CUDA-capable devices
are busy or unavailable`) on some ranks. A job with one GPU works.

Cause: clusters often set their GPUs to exclusive-process mode: the second process that
opens one is refused. A rank that touches GPU 0 before it has chosen its own, with a
bare `.cuda()`, a `torch.load` without `map_location` or a test for memory, opens the GPU
of rank 0. So does a parent process that used CUDA and then starts the ranks.

Cure: `torch.cuda.set_device(local_rank)` as the first line that concerns a GPU, on each
rank, and no CUDA in a parent that only starts ranks.

Next time: the column "Compute M." of `nvidia-smi` says `E. Process` for this mode. If
each rank has its own GPU, look for a process that an earlier job left behind.

Links: https://github.com/karpathy/nanoGPT/pull/116 (cured by set_device)
https://github.com/huggingface/pytorch-image-models/issues/1033 (DDP on a cluster in exclusive mode)
https://github.com/BUTSpeechFIT/safe_gpu/issues/1 (a parent that holds the GPU)
"""

# %% quoted
# RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable

# %% broken
model = Net().cuda()  # GPU 0, on every rank
torch.cuda.set_device(local_rank)
ddp = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])

# %% fixed
torch.cuda.set_device(local_rank)
model = Net().cuda()  # the rank's own
ddp = DistributedDataParallel(model, device_ids=[local_rank])

# %% signs
# RuntimeError: CUDA error: (?:CUDA-capable device\(s\) is/are|all CUDA-capable devices are) busy
# torch: CUDA-capable device\(s\) is/are busy or unavailable
# torch: all CUDA-capable devices are busy or unavailable
