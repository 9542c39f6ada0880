r"""Peer access is not supported: try NCCL_P2P_DISABLE=1.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `peer access is not supported between these two devices`, as a CUDA error or under
`NCCL WARN`, at the first collective or copy between the GPUs. One GPU alone works.

Cause: peer access is the direct path between two GPUs of a machine. Many consumer cards
do not have it, and a hypervisor, a container's settings or PCI access control can
forbid it. NCCL asks before it uses that path, but the answer can be wrong (in a virtual
machine), and your own kernels or those of an inference engine may not ask.

Cure: `NCCL_P2P_DISABLE=1`: NCCL then goes through the host's memory, which is slower
and works. An engine with its own all-reduce has a switch for it (vLLM:
`--disable-custom-all-reduce`).

Next time: `torch.cuda.can_device_access_peer(0, 1)`, and `nvidia-smi topo -p2p r`, say
which GPU can read which.

Links: https://github.com/ray-project/ray_lightning/issues/24 (NCCL: failed to open CUDA IPC handle)
https://github.com/verl-project/verl/issues/1874 (consumer cards)
https://github.com/tunib-ai/parallelformers/issues/44 (virtual machines)
"""

# %% quoted
# NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between
# these two devices
# RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:784, unhandled cuda error, NCCL
# version 2.7.8

# %% broken
# torchrun --nproc-per-node 2 train.py

# %% fixed
# NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 2 train.py

# %% signs
# torch: peer access is not supported between these two devices
# NCCL WARN .*peer access is not supported
# cudaErrorPeerAccessUnsupported
