r"""DDP around a zero-bubble pipeline's stages: replicas drift apart.

class: pipeline
symptom: silent
runs on: 2 ranks
chapter: ch6_model_parallel
signature: weights of the last stage differ by 0\.\d+
guard: gradient module\.\w+ .*is not the same

You see: nothing at first. The replicas of all stages but the first drift apart. In the
second step torch may fail with `rebuilt parameter indices size is not same as original
model parameters size`, an INTERNAL ASSERT that does not name the pipeline.

Cause: a zero-bubble schedule cuts the backward in two, and computes the gradients of
the weights with `torch.autograd.grad`. That call bypasses the hooks with which DDP
reduces, so each replica keeps its own gradients. Only the first stage, which needs no
gradient of its input, runs a whole backward. The assert has another cause: DDP notes
the order of its parameters in every micro-batch of the first step. Plain 1F1B meets it,
too, and `find_unused_parameters=True` avoids it, but does not make zero bubble reduce.

Cure: `fully_shard` around each stage, on the mesh's data-parallel dimension: its schedule
reduces at the end of the step. Or average the gradients by hand after `schedule.step`.

Next time: compare a checksum of each stage's weights over its replicas after one step.

Links: https://github.com/pytorch/pytorch/issues/144530 (zero bubble passes by DDP's hooks)
"""

# %% given
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel

pipeline = [dist.new_group([i]) for i in range(world_size)][rank]  # one on each rank
torch.manual_seed(0)
layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
batch = torch.full((4, 4), 1.0 + rank)


def schedule(parts):
    stages = [
        PipelineStage(p, i, 2, device, group=pipeline) for i, p in enumerate(parts)
    ]
    return ScheduleInterleavedZeroBubble(stages, 2, nn.functional.mse_loss)


# %% broken
parts = [DistributedDataParallel(layer) for layer in layers]
schedule(parts).step(batch, target=batch.sin())
for layer in layers:
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
print("trained on", len(batch), "samples")

# %% fixed
parts = [fully_shard(layer) for layer in layers]
schedule(parts).step(batch, target=batch.sin())
for layer in layers:
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
print("trained on", len(batch), "samples")

# %% invariant: the replicas of each stage are equal
for name, layer in ("first", layers[0]), ("last", layers[1]):
    weight = layer.weight.detach()
    weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    both = [torch.empty(4, 4) for _ in range(world_size)]
    dist.all_gather(both, weight.contiguous())
    gap = (both[0] - both[1]).abs().max().item()
    assert not gap, f"weights of the {name} stage differ by {gap:.3f}"

# %% guarded
from allranks.guard import Guard

parts = [DistributedDataParallel(layer) for layer in layers]
watch = Guard(parts[1])
schedule(parts).step(batch, target=batch.sin())
watch.step()

# %% signs
# maybe: rebuilt parameter indices size is not same as original model parameters size && pipelin
