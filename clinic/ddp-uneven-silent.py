r"""One rank has fewer batches, so gradients are added to its metrics.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: a gradient of 100\.\d+
guard: batches in this epoch: 3 on rank 0, 2 on rank 1

You see: the loss jumps at the end of an epoch, or never gets as low as it should. There
is no hang and no error, because both ranks call the same number of collectives in
total.

Cause: the ranks have different numbers of batches. The one that is done goes on to
reduce its metric, while the other still reduces a gradient of the same size. A
collective pairs calls by their order, not by their purpose, so the two are added.

Cure: give all ranks the same number of steps: cut to the shortest, or pad. Where that
is impossible, `with ddp.join():` around the loop makes the short rank take part.

Next time: count the batches on each rank. `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares
operation, shape and type of each pair, which are equal here; a separate process group
for the metrics turns the mix-up into a visible hang.

Links: https://github.com/pytorch/pytorch/issues/38174 (proposal of join for ranks with unequal inputs)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

files = [torch.tensor([[value]]) for value in (1.0, 1.1, 1.2, 1.3, 1.4)]
gradients = []
model = nn.Linear(1, 1, bias=False)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

# %% broken
for epoch in range(2):
    first = (rank + epoch) % world_size
    shard = files[first::world_size]  # three files for one, two for the other
    for x in shard:
        optimizer.zero_grad()
        ddp(x).mean().backward()
        optimizer.step()
        gradients.append(model.weight.grad.item())
    samples = torch.tensor([100.0])
    dist.all_reduce(samples)
    print(f"epoch {epoch}: {samples.item():.1f} samples")

# %% fixed
for epoch in range(2):
    first = (rank + epoch) % world_size
    shard = files[first::world_size][: len(files) // world_size]
    for x in shard:
        optimizer.zero_grad()
        ddp(x).mean().backward()
        optimizer.step()
        gradients.append(model.weight.grad.item())
    samples = torch.tensor([100.0])
    dist.all_reduce(samples)
    print(f"epoch {epoch}: {samples.item():.1f} samples")

# %% invariant: no mean gradient is larger than the largest gradient of a sample
largest, worst = max(files).item(), max(gradients)
assert worst <= largest, f"a gradient of {worst:.2f}; no file gives over {largest:.1f}"

# %% guarded
from allranks.guard import Guard

watch = Guard(ddp, optimizer)
for epoch in range(2):
    first = (rank + epoch) % world_size
    shard = files[first::world_size]
    for x in watch.epoch(shard, epoch):
        optimizer.zero_grad()
        ddp(x).mean().backward()
        watch.step()
        optimizer.step()
    samples = torch.tensor([100.0])
    dist.all_reduce(samples)
