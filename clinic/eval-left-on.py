r"""One rank keeps training in eval mode.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: \d+ of 2 ranks train with dropout
guard: is in evaluation on rank 0; .* is in training on rank 1

You see: a little more overfitting than before, and only with several ranks. The weights
are equal on all ranks, so comparing them shows nothing.

Cause: rank 0 evaluated, called `eval()`, and did not call `train()` after it. From then
on it computes its share of each gradient without dropout, and BatchNorm uses its
running statistics there. DDP averages both kinds of gradient. If `eval()` was called on
`ddp.module`, DDP's own flag does not show it.

Cure: call `train()` after each evaluation, or better, right before training goes on, so
that it does not matter how the evaluation ended.

Next time: gather the `training` flags of all modules, not of the model alone.

Links: https://github.com/fartashf/vsepp/issues/4 (train() only comes with the next epoch)
https://github.com/unslothai/unsloth/pull/11238 (two ranks under DDP: the wrapper's flag says training, the modules do not)
"""

# %% given
from torch.nn.parallel import DistributedDataParallel

net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
ddp = DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
x = torch.ones(4, 8)
torch.manual_seed(rank)


def evaluate():
    net.eval()
    return net(x).mean().item()


# %% broken
for epoch in range(2):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()
    if rank == 0:
        print(f"{evaluate():.3f}")

# %% fixed
for epoch in range(2):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    optimizer.step()
    if rank == 0:
        print(f"{evaluate():.3f}")
        net.train()

# %% invariant: all ranks train in one mode
dropping = torch.tensor(int(net[1].training))
dist.all_reduce(dropping)
assert dropping == world_size, f"{dropping.item()} of 2 ranks train with dropout"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp, optimizer)
for epoch in range(2):
    optimizer.zero_grad()
    ddp(x).square().mean().backward()
    watch.step()
    optimizer.step()
    if rank == 0:
        evaluate()
