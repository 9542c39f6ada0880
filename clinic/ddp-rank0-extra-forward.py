r"""Rank 0 does one extra training step.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 0 waits in .*backward\(\)

You see: rank 1 finishes, but rank 0 waits in its last `backward`. If rank 1 exits, rank
0 fails with "Connection reset by peer". All steps until then were wrong, but nothing
showed it.

Cause: rank 0 ran an additional forward and backward pass: to print a shape, to warm
up, to log gradients. Its extra gradients were reduced with rank 1's next step, and each
later step with the one after it.

Cure: use `ddp.module` for what only one rank does: neither its forward nor its backward
communicates. Clear the gradients that it leaves. `ddp.no_sync()` is not enough: the
forward inside it may still broadcast the buffers.

Next time: count the calls of `backward` on each rank.

Links: https://github.com/pytorch/pytorch/issues/89716 (forward pass on one rank only hangs DDP)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.ones(2, 1)
ddp = DistributedDataParallel(nn.Linear(1, 1))

# %% broken
if rank == 0:
    ddp(x).mean().backward()
    print("gradient norm", ddp.module.weight.grad.norm().item())
for step in range(3):
    ddp.zero_grad()
    ddp(x).mean().backward()
print("3 steps done")

# %% fixed
if rank == 0:
    ddp.module(x).mean().backward()
    print("gradient norm", ddp.module.weight.grad.norm().item())
for step in range(3):
    ddp.zero_grad()
    ddp(x).mean().backward()
print("3 steps done")
