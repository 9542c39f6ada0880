r"""Only one rank stops early, and the others hang.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch5_ddp
signature: rank 0 waits in .*backward\(\)

You see: the job hangs in an epoch that depends on the data. One rank has printed that
it stops.

Cause: the decision comes from something that differs by rank: its own loss, a timer, a
signal that only one process got. One rank leaves the loop, so the others wait for it in
the next `backward`.

Cure: decide together. Reduce the flag: `MAX` stops all as soon as one wants to. Or let
rank 0 decide and broadcast.

Next time: search the loop for `break`, `return` and `continue`, and ask of each
condition whether it is the same on all ranks. With NCCL, `torchfrtrace` over the dumps
of the flight recorder names the ranks that are missing.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/379 (stop condition met in some processes only)
https://github.com/ultralytics/yolov5/pull/8345 (the stop flag is broadcast to all processes)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(1, 1))
losses = [0.9, 0.8, 0.7] if rank == 0 else [0.9, 0.4, 0.3]  # as validated

# %% broken
for epoch, loss in enumerate(losses):
    ddp(torch.ones(2, 1)).mean().backward()
    stop = torch.tensor(loss < 0.5)
    if stop:
        break
print("stopped after epoch", epoch)

# %% fixed
for epoch, loss in enumerate(losses):
    ddp(torch.ones(2, 1)).mean().backward()
    stop = torch.tensor(int(loss < 0.5), device=device)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop:
        break
print("stopped after epoch", epoch)

# %% signs
# with: arly stopping
