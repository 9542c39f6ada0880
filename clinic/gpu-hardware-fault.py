r"""Uncorrectable ECC error, or GPU is lost: broken hardware.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `uncorrectable ECC error encountered`, `uncorrectable NVLink error`, `Unable to
determine the device handle`, `GPU is lost`, or in the kernel's log `NVRM: Xid`. One rank
says so; the others hang, time out or lose a peer, and their messages come last. `CUDA
error: unknown error` of a job that ran for hours can be the same.

Cause: the memory of a GPU has failed (ECC), a link between GPUs has (NVLink), or the card
no longer answers on its bus (Xid 79: heat, power, a loose card). No change of the script
helps, and the same code runs elsewhere.

Cure: take that machine or GPU out of the job, then let its owner reset the GPU
(`nvidia-smi --gpu-reset`), reboot, and replace the card if it happens again. Resume from
the last checkpoint.

Next time: the number behind `Xid` names the fault: 48, 63, 64, 94, 95 memory; 74 NVLink;
79 fell off the bus; but 13, 31, 43 and 45 mostly follow from a program's own illegal
access. `dmesg | grep Xid` and `nvidia-smi -q -d ECC` on each machine, before a long job.

Links: https://github.com/verl-project/verl/issues/407 (ECC on one of 32 GPUs)
https://github.com/pytorch/pytorch/issues/58155 (NVLink)
https://github.com/NVIDIA/semantic-segmentation/issues/33 (ECC after 18 epochs on 8 GPUs)
"""

# %% quoted
# [E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception:
# CUDA error: uncorrectable ECC error encountered

# %% broken
# torchrun --nnodes 4 --nproc-per-node 8 train.py

# %% fixed
# dmesg | grep "NVRM: Xid"  # on each machine: take out the one that has some
# torchrun --nnodes 3 --nproc-per-node 8 train.py

# %% signs
# uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_(?:ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)
# NVRM: Xid \([^)]*\): (?:48|6[0-9]|7[0-9]|9[0-9]|1[0-9][0-9])\b
# maybe: NVRM: Xid
# fallen off the bus|GPU is lost|[Uu]nable to determine the device handle
# hardware (?:stack )?error && CUDA error: |Cuda failure
# maybe: cudaErrorECCUncorrectable|cudaErrorNvlinkUncorrectable|CUDA error: unknown error
