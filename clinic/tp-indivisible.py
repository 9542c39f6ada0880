r"""a and b must have same reduction dim: 5 features over 2 ranks.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: a and b must have same reduction dim, but got \[2, 6\] X \[5, 4\]

You see: `a and b must have same reduction dim`, with a size that is not in your
configuration, and a different size on the last rank.

Cause: five features are cut into three on rank 0 and two on rank 1. `ColwiseParallel`
cuts a layer's outputs, and hands each rank's part on as a plain tensor, which does not
record the size of the whole. `RowwiseParallel` cuts the next layer's inputs. It takes
the part to be one of W equal parts (W ranks), so it computes 2 x 3 = 6 features on rank
0, and 2 x 2 = 4 on rank 1.

Cure: choose a number of ranks that divides the model's heads, its key and value heads,
its hidden sizes and its vocabulary. You can't change the heads of a trained model: 40
heads can be split over 2, 4, 5 or 8 ranks, but never over 16. You can pad a vocabulary.
In a model of your own, you can also choose the sizes, as below.

Next time: divide the size in the message by the number of ranks: this gives the rank's
part. If the part is not the same on all ranks, the cut was uneven.

Links: https://github.com/pytorch/pytorch/issues/150336 (why five features fail, and the six)
https://github.com/pytorch/pytorch/issues/141335 (sixteen features on six ranks)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

mesh = init_device_mesh("cpu", (world_size,))
plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}

# %% broken
model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4))
parallelize_module(model, mesh, plan)
print(model(torch.ones(2, 4)).shape)

# %% fixed
model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
parallelize_module(model, mesh, plan)
print(model(torch.ones(2, 4)).shape)

# %% signs
# a and b must have same reduction dim, but got
# FSDP does not support uneven sharding on dim
# with: Sharding propagation failed for
# ^(?!.*[Ww]orld[ _]size ?\(\d+\)).*divisible by (?:the )?tensor[ _](?:model[ _])?parallel
# is not a multiple of world size|cannot split tensor evenly
# (?:heads|hidden|vocab|groups|experts)\w* ?.{0,40}(?:divisible by|a multiple of) (?:the )?(?:tensor|tp_size|tp size|TP size|model[-_ ]parallel|world_size|world size|ep_size|expert_model_parallel)
# maybe: AssertionError: \d+ is not divisible by \d+
# with: egatron|tensor_parallel|model_parallel|fairscale|ParallelLinear
# divisible by (?:the )?(?:number of tensor parallel|mp_size)
# with: , in divide|ensure_divisibility|assert numerator % denominator|ColumnParallel
