r"""ncclUnhandledCudaError: the first NCCL WARN line has the cause.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `ncclUnhandledCudaError: Call to CUDA function failed`, or `internal error`, at
the first collective, which is often a barrier or `DistributedDataParallel(...)`. The
same model trains on one GPU.

Cause: NCCL opens its communicator at the first collective (unless the group was given a
`device_id`): it loads kernels, reads the topology, maps the memory of other GPUs. One
of those calls failed. The message names only the layer that gave up; what failed is
reported under "Last error", or only in NCCL's own log: a driver that is too old, GPUs
that cannot map each other's memory, no memory left, a broken GPU.

Cure: run ten lines that only call `all_reduce`, with NCCL's log on, and repair what its
first WARN line names. If they run with `NCCL_P2P_DISABLE=1`, the GPUs cannot read each
other's memory although the driver says so: look at ACS and IOMMU, at the virtual
machine, at the driver. Do not leave the variable set: it forbids NVLink too, and all
data goes through the host's memory. If they still fail with it, the cause is something
else. NCCL comes as its own wheel beside torch's; a newer one has repaired this before.

Next time: in the log look for the first "NCCL WARN" of any rank, not for the last line.
`nvidia-smi topo -m` shows how the GPUs are joined, `dmesg | grep -i xid` whether one is
faulty. NCCL 2.18 calls network errors "internal", too.

Links: https://github.com/NVIDIA/nccl/issues/1410 (Cuda failure 1 under "Last error")
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_P2P_DISABLE: NVLink and PCI)
https://github.com/NVIDIA/nccl/issues/1024 (two GPUs; repaired in a newer NCCL)
https://github.com/NVIDIA/nccl/issues/1092 (NCCL 2.18: network errors read "internal error")
"""

# %% quoted
# torch.distributed.DistBackendError: NCCL error in:
# ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with
# NCCL_DEBUG=INFO for details), NCCL version 2.20.5
# ncclUnhandledCudaError: Call to CUDA function failed.
# Last error:
# Cuda failure 1 'invalid argument'

# %% broken
# torchrun --nproc-per-node 2 train.py

# %% fixed
# NCCL_DEBUG=INFO torchrun --nproc-per-node 2 reduce.py  # says what failed
# NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 2 reduce.py  # runs? peer access failed

# %% signs
# maybe: ncclUnhandledCudaError|unhandled cuda error
# maybe: ncclInternalError|NCCL [Ee]rror.*internal error
# maybe: NCCL WARN Cuda failure
# unless: device-side assert triggered
