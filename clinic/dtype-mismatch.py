r"""Ranks reduce tensors of different dtypes.

class: process group
symptom: silent
runs on: 2 ranks
chapter: ch4_ranks
signature: instead of 2\.0
guard: value total.* on rank 0 and none on rank 1

You see: nothing, or a metric of 1065353216: the float 1.0, read as an integer. One rank
counts with `int32`, another with `float32`.

Cause: a collective sends bytes. With gloo and NCCL the ranks do not tell each other
what the bytes mean, so each rank adds them as its own type. If the types differ in
width, it fails as different shapes do.

Cure: use the same dtype on every rank, and state it where the tensor is made.

Next time: `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares dtypes and shapes before each
collective and names both. An absurd integer may be a float's bits: look at
`x.view(torch.float32)`.

Links: https://github.com/pytorch/pytorch/issues/150248 (NCCL: float32 and bfloat16 add up to an absurd value)
https://github.com/modelscope/ms-swift/issues/9550 (a metric: float64 on some ranks, and a hang)
"""

# %% broken
count = 1 if rank else 1.0  # one rank has counted with integers
total = torch.tensor([count] * 4, dtype=torch.int32 if rank else None)
dist.all_reduce(total)
print(total.tolist())

# %% fixed
count = 1 if rank else 1.0  # one rank has counted with integers
total = torch.tensor([count] * 4, dtype=torch.float32)
dist.all_reduce(total)
print(total.tolist())

# %% invariant: the sum over the ranks is the number of ranks
for number in total.tolist():
    assert number == world_size, f"{number} instead of {float(world_size)}"

# %% guarded
from allranks.guard import Guard

count = 1 if rank else 1.0  # one rank has counted with integers
total = torch.tensor([count] * 4, dtype=torch.int32 if rank else None)
dist.all_reduce(total)
Guard().same(total=total)

# %% signs
# Collectives differ in the following aspects:\s+Tensor Tensor dtypes
