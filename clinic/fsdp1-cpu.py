r"""FSDP needs a non-CPU accelerator device: the older FSDP on a CPU.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch12_2_moving
signature: RuntimeError: FSDP needs a non-CPU accelerator device

You see: `FSDP needs a non-CPU accelerator device` on a laptop or in CI, with code that
runs on GPUs.

Cause: `FullyShardedDataParallel` picks the current accelerator as the device to compute
on. If there is none, it doesn't fall back to the CPU.

Cure: name the device: pass `device_id=torch.device("cpu")`. Or use its successor,
`fully_shard(model)`. It works on a CPU with gloo, PyTorch's CPU backend, without any
setting.

Next time: if you see the message on a machine with GPUs, your torch was built for the
CPU. Print `torch.version.cuda`: it is `None` then.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/21778 (the message, with FSDP on a CPU)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

# %% broken
model = FullyShardedDataParallel(nn.Linear(4, 1))
print(model(torch.ones(2, 4)).shape)

# %% fixed
cpu = torch.device("cpu")
model = FullyShardedDataParallel(nn.Linear(4, 1), device_id=cpu)
print(model(torch.ones(2, 4)).shape)

# %% signs
# FSDP needs a non-CPU accelerator device
