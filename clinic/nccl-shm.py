r"""ncclSystemError: NCCL finds no room in /dev/shm.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: in a container, the first collective fails with `ncclSystemError` or "unhandled
system error". Newer versions of torch add NCCL's reason under "Last error"; older ones
leave it to NCCL, which speaks only if NCCL_DEBUG is set. Or a rank dies of signal 7
(SIGBUS, exit code -7): the file could be made, but not filled.

Cause: GPUs of one machine that cannot read each other's memory exchange data through
files in /dev/shm. Docker gives a container 64 MB there unless told otherwise; NCCL
wants about 10 MB per connection.

Cure: `docker run --shm-size=1g` (or `--ipc=host`); in Kubernetes an `emptyDir` with
`medium: Memory` at /dev/shm. DataLoader workers use the same space.

Next time: always begin with `NCCL_DEBUG=INFO`, then run `df -h /dev/shm` in the
container. `NCCL_SHM_DISABLE=1` is slower, but shows whether this is the cause.

Links: https://github.com/NVIDIA/nccl/issues/342 (64 MB in docker; larger shm helps)
https://github.com/pytorch/torchtitan/issues/853 (a container with 16 MB)
https://github.com/fal-ai-community/video-diffusion-speedrun/issues/2 (--shm-size=1g)
"""

# %% quoted
# ncclSystemError: System call (e.g. socket, malloc) or external library call failed
# or device error.
# Last error:
# Error while creating shared memory segment /dev/shm/nccl-pZafXL (size 7340384)

# %% broken
# docker run --gpus all -it image torchrun --nproc-per-node 4 train.py

# %% fixed
# docker run --gpus all --shm-size=1g -it image torchrun --nproc-per-node 4 train.py

# %% signs
# Error while creating shared memory segment \S*nccl
# NCCL WARN Call to posix_fallocate failed ?: No space left on device
# failed to extend /dev/shm/nccl
# maybe: Caught signal 7 \(Bus error|Signal 7 \(SIGBUS\)|exitcode *[:=]? *-7\b|return code = -7\b && ncclGroup|ncclComm|ncclGetUniqueId|libnccl|NCCL INFO|NCCL version
# maybe: ncclSystemError|unhandled system error|/dev/shm/nccl
