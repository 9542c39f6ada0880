r"""Modified by an inplace operation: two DDP forwards, one backward.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: modified by an inplace operation

You see: a discriminator or a siamese network that works on one GPU fails in `backward`:
a variable "is at version 3; expected version 2".

Cause: before each forward pass the buffers (BatchNorm's running statistics) are
overwritten with rank 0's. But the first pass has saved them for its backward, so
autograd finds that they have changed. DDP itself did this up to torch 2.11; since 2.12
it hides the copy from autograd. A copy by hand, as here, still fails on any version.

Cure: share buffers once a step, or run both batches through one forward pass with
`torch.cat`. Under DDP itself: torch 2.12 or newer, or `broadcast_buffers=False`.

Next time: `torch.autograd.set_detect_anomaly(True)` shows the forward call whose saved
variable was overwritten. If that is a BatchNorm under DDP, it is this.

Links: https://github.com/pytorch/pytorch/issues/22095 (module with a buffer called twice under DDP)
https://github.com/pytorch/pytorch/issues/175024 (GAN discriminator; cause in _sync_buffers)
https://github.com/pytorch/pytorch/pull/175851 (the repair in DDP, released with torch 2.12)
"""

# %% given
from torch import nn

model = nn.BatchNorm1d(1)


def share_buffers():
    for buffer in model.buffers():
        received = buffer.clone()
        dist.broadcast(received, src=0)
        buffer.copy_(received)


real, fake = torch.tensor([[1.0], [2.0]]), torch.tensor([[5.0], [7.0]])

# %% broken
share_buffers()
score = model(real).square().mean()
share_buffers()
score = score - model(fake).square().mean()
score.backward()
print("gradient", model.weight.grad.shape)

# %% fixed
share_buffers()
score = model(real).square().mean()
score = score - model(fake).square().mean()
score.backward()
print("gradient", model.weight.grad.shape)

# %% signs
# maybe: one of the variables needed for gradient computation has been modified by an inplace operation
# with: DistributedDataParallel|nn[./]parallel[./]distributed|broadcast_buffers
# with: Error detected in (?:Cudnn|Native)?BatchNorm
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: FloatTensor \[\d+\]\](?:,? which is output \d+ of BroadcastBackward)? is at version
