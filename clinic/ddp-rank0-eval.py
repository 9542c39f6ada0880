r"""Rank 0 evaluates alone, through the DDP wrapper.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: killed by SIGABRT[\s\S]*gloo::EnforceNotMet

You see: during the evaluation or right after it, one rank dies in native code (gloo),
or all ranks hang (NCCL). Some scripts get as far as the end of the training.

Cause: after a training step, DDP's next forward pass broadcasts the buffers (here
BatchNorm's running statistics), even in `eval()` mode under `no_grad`. Only rank 0
makes this broadcast. The other ranks receive it in place of the message that they
expect next, so the sizes don't match. Here they expect the layout of the buckets, which
DDP shares in the second step; elsewhere a barrier or a metric. If they expect the
broadcast of a training step, the two match by luck, and nothing fails.

Cure: evaluate the bare model, `ddp.module`. Or let all ranks evaluate, each its share.
Without buffers, the broken code works by luck.

Next time: search for `if rank == 0`, and look for DDP's forward inside. With NCCL,
`TORCH_DISTRIBUTED_DEBUG=DETAIL` names the two collectives that met.

Links: https://github.com/pytorch/pytorch/issues/53979 (advice: the bare module in evaluation avoids communication)
https://github.com/jpata/particleflow/pull/233 (validation on one GPU hangs; repaired with model.module)
https://github.com/pytorch/pytorch/issues/54059 (validation on one GPU makes a later barrier hang)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[1.0], [3.0]])
ddp = DistributedDataParallel(nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8)))

# %% broken
for epoch in range(2):
    ddp.train()
    ddp(x).square().mean().backward()
    if rank == 0:
        with torch.no_grad():
            print("epoch", epoch, ddp.eval()(x).shape)

# %% fixed
for epoch in range(2):
    ddp.train()
    ddp(x).square().mean().backward()
    if rank == 0:
        with torch.no_grad():
            print("epoch", epoch, ddp.module.eval()(x).shape)

# %% signs
# maybe: op\.preamble\.length <= op\.nbytes
# with: OpType=BROADCAST
