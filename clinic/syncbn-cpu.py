r"""SyncBatchNorm layers only work with GPU modules.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: SyncBatchNorm layers only work with GPU modules

You see: a script that was written for GPUs fails on the CPU when it wraps the model.
Without DDP it fails in the first training step: "SyncBatchNorm expected input tensor to
be on GPU".

Cause: `SyncBatchNorm` has code for GPUs only. In `eval()` it behaves like BatchNorm and
works anywhere.

Cure: convert only if there are GPUs. For a configuration that asks for it, or a model
that was saved whole, replace the layers with BatchNorm on the CPU: their state dicts
are the same.

Next time: search the configuration for `SyncBN` before you blame the input's device.

Links: https://github.com/QData/spacetimeformer/issues/90 (DDP on the CPU rejects SyncBatchNorm)
https://github.com/open-mmlab/mmsegmentation/issues/387 (inference on the CPU; BN in the configuration)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))

# %% broken
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
ddp = DistributedDataParallel(model)
print("trains with", type(ddp.module[1]).__name__)

# %% fixed
if device.type != "cpu":
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
ddp = DistributedDataParallel(model)
print("trains with", type(ddp.module[1]).__name__)

# %% signs
# SyncBatchNorm layers only work with (GPU|CUDA) modules
# SyncBatchNorm expected input tensor to be on
# maybe: SyncBatchNorm is only supported within
# maybe: raise ValueError\("SyncBatchN
