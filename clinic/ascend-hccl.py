r"""HCCL error (Ascend NPUs): how to read it.

class: process group
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `HCCL error in ... ProcessGroupHCCL.cpp`, `HCCL function error: HcclCommInit...`,
or `ERR02200 DIST call hccl api failed`, and below it a code that begins with `EI` or `EJ`
and a line `Reason:` or `Solution:`.

Cause: HCCL is Huawei's library of collectives for Ascend NPUs, which torch_npu uses as
NCCL is used on NVIDIA GPUs. Its variables and tools have other names, so advice about
`NCCL_...` has no effect here. The code below the message is the reason: EI0006 a rank did
not come in time, EJ0001 processes of an earlier job still hold the device, EI0002 a
timeout while it ran. What ranks have to do is the same: each makes the same calls.

Cure: read the first rank that failed, and follow its `Solution:` line. Often: end
leftover processes (`npu-smi info` lists them) and wait ten seconds; give slow ranks time
by `HCCL_CONNECT_TIMEOUT` (start) and `HCCL_EXEC_TIMEOUT` (run); let
`HCCL_SOCKET_IFNAME` name the interface; use versions of CANN, torch and torch_npu that
belong together.

Next time: `hccn_tool -i 0 -link -g` shows a link, and the logs of each device are in
`~/ascend/log`.

Links: https://github.com/hiyouga/LlamaFactory/issues/3839 (EJ0001: the last job is still there)
https://github.com/vllm-project/vllm-ascend/issues/486 (EI0006: a rank did not send in time)
"""

# %% quoted
# RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64
# [ERROR] 2024-05-21-11:57:54 (PID:927000, Device:3, RankID:3) ERR02200 DIST call hccl api
# failed.

# %% broken
# NCCL_SOCKET_IFNAME=eth0 torchrun --nnodes 2 --nproc-per-node 8 train.py

# %% fixed
# HCCL_SOCKET_IFNAME=eth0 HCCL_CONNECT_TIMEOUT=600 \
#     torchrun --nnodes 2 --nproc-per-node 8 train.py

# %% signs
# HCCL error in|HCCL function error|function error: ?[Hh]ccl\w+|HcclCommInit|hcclCommInit
# call hccl api failed
# maybe: ProcessGroupHCCL|HCCL_CONNECT_TIMEOUT|HCCL_EXEC_TIMEOUT|HcclAllreduce
