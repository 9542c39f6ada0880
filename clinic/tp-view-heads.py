r"""Shape is invalid for input of size: a rank has only half the heads.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: shape '\[1, 2, 4, 2\]' is invalid for input of size 8

You see: `shape '[…]' is invalid for input of size …` in attention, and the size is too
small by a factor of W, the number of ranks.

Cause: `ColwiseParallel` cuts the projection's output features. Its output is a plain
tensor, this rank's part, with the heads of this rank only. But the model's `view` uses
the number of heads from the configuration.

Cure: let `view` infer the number of heads: write `view(batch, time, -1, head_dim)`. The
size of a head does not change. This works only if there are at least as many heads as
ranks: with 8 heads for keys and values, 16 ranks hold half a head each, and this view
fails as well. (Or pass `use_local_output=False`, which keeps a DTensor: it knows the
whole shape.)

Next time: print the shape after each parallelized layer. If your code uses a size from
the configuration on a sharded dimension, the size is wrong by a factor of W.

Links: https://github.com/pytorch/torchtitan/issues/932 (16 ranks, 8 key heads: the view fails with -1 too)
https://github.com/huggingface/transformers/pull/45109 (T5's view with a fixed number of heads)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel

HEADS, HEAD_DIM = 4, 2
mesh = init_device_mesh("cpu", (world_size,))
query = nn.Linear(8, HEADS * HEAD_DIM)
query = parallel.parallelize_module(query, mesh, parallel.ColwiseParallel())
x = torch.ones(1, 2, 8)  # (batch, time, features)

# %% broken
q = query(x).view(1, 2, HEADS, HEAD_DIM)
print("heads of this rank:", q.shape[2])

# %% fixed
q = query(x).view(1, 2, -1, HEAD_DIM)
print("heads of this rank:", q.shape[2])

# %% signs
# maybe: RuntimeError: shape '\[[-\d, ]+\]' is invalid for input of size
# with: parallelize_module|[Tt]ensor[ _]?[Pp]arallel|wiseParallel|(?:Column|Row)ParallelLinear
# with: distributed[./]_?tensor|DTensor|\[TP\] RuntimeError|tp_mesh
# with: tp_size|tp_plan|device_mesh|DeviceMesh|ParallelStyle|SequenceParallel
