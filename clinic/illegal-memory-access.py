r"""CUDA error: an illegal memory access, reported by NCCL's watchdog.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `Process group watchdog thread terminated with exception: CUDA error: an illegal
memory access was encountered`, or `unspecified launch failure`, or the same in a
collective. The other ranks time out, or lose a peer.

Cause: a GPU kernel wrote or read outside of its tensors. Kernels run later than the
line that starts them, so the error is reported by the next call that asks the GPU, in a
distributed job mostly by NCCL's watchdog. Neither NCCL nor the network is to blame.
Suspects: an extension that was compiled for a different torch or GPU (attention,
quantization, Triton kernels), an index beyond 2^31, a buffer that was freed while
another stream used it.

Cure: find the kernel: `CUDA_LAUNCH_BLOCKING=1` makes the traceback point to its line.
Then replace it (upgrade or rebuild the extension, use torch's own operator), or repair
what it is given.

Next time: run the failing batch on one GPU under `compute-sanitizer python train.py`: it
names the kernel and the address.

Links: https://github.com/vllm-project/vllm/issues/17098 (a Triton kernel, told by the watchdog)
https://github.com/vllm-project/vllm/issues/8177 (an attention kernel, told by the watchdog)
"""

# %% quoted
# [rank0]:[E117 11:40:54.259889664 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID
# 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA
# error: an illegal memory access was encountered

# %% broken
# torchrun --nproc-per-node 8 train.py

# %% fixed
# CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node 8 train.py  # names the line

# %% signs
# exception: CUDA error: an illegal memory access was encountered
# torch: CUDA error: an illegal memory access was encountered
# maybe: [Cc]uda failure (?:700 )?'an illegal memory access was encountered'
# maybe: an illegal memory access was encountered && torchrun|torch[./]distributed|ProcessGroup|NCCL WARN|deepspeed
# exception: CUDA error: (?:unspecified launch failure|misaligned address)
# maybe: Warp Illegal Address
