r"""Only the rank with an infinite gradient skips its step.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: steps taken by the ranks .* and scales
guard: GradScaler's scale=2 on rank 0; GradScaler's scale=4 on rank 1|GradScaler is not the same

You see: nothing at first, although the parts of one model take different numbers of
steps and their loss scales drift apart. If the optimizer itself communicates, the job
hangs.

Cause: `GradScaler` looks for inf and NaN in the gradients that it is given. Where each
rank owns a part of the model, only the owner of the overflow skips. Under DDP the
average spreads inf to all ranks, and FSDP2's DTensors carry the verdict to all; for
parts that are cut by hand neither happens.

Cure: use `ShardedGradScaler`, which reduces the verdict over the process group.

Next time: compare `scaler.get_scale()` on all ranks.

Links: https://github.com/facebookresearch/fairscale/issues/180 (ranks see different overflows and disagree on the step)
https://github.com/facebookresearch/fairscale/pull/179 (one rank skips, the other steps and hangs)
"""

# %% given
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

part = nn.Linear(1, 1, bias=False)  # this rank's share of the model
nn.init.ones_(part.weight)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
x = torch.tensor([[float("inf") if rank == 0 else 2.0]])

# %% broken
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
scaler.scale(part(x).sum()).backward()
scaler.step(optimizer)
scaler.update()
print(f"weight {part.weight.item():g}, scale {scaler.get_scale():g}")

# %% fixed
scaler = ShardedGradScaler(device="cpu", init_scale=4.0)
scaler.scale(part(x).sum()).backward()
scaler.step(optimizer)
scaler.update()
print(f"weight {part.weight.item():g}, scale {scaler.get_scale():g}")

# %% invariant: all ranks take a step, or none does
taken = [None] * world_size
dist.all_gather_object(taken, (int(part.weight.item() != 1), scaler.get_scale()))
steps, scales = zip(*taken, strict=True)
words = f"steps taken by the ranks {list(steps)} and scales {list(scales)}"
assert len(set(taken)) == 1, f"{words} differ"

# %% guarded
from allranks.guard import Guard

scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
own = "parameters", "gradients"  # each rank has a part of its own
watch = Guard(part, optimizer, scaler=scaler, skip=own)
for _ in range(2):
    optimizer.zero_grad()
    scaler.scale(part(x).sum()).backward()
    watch.step()
    scaler.step(optimizer)
    scaler.update()
