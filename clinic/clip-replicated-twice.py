r"""The gradient norm counts replicated gradients once per rank.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: norm \S+ instead of 13
beyond: All ranks hold the same wrong norm, so nothing differs. Only a comparison with one process shows it.

You see: the gradient norm grows with the tensor-parallel size, although the loss does
not change, and clipping cuts more than it did.

Cause: the squares of all local gradients are summed over the ranks. That is right for
shards, which each rank has for itself. But norm layers, biases and ignored parameters
are replicated, and their squares are counted once per rank.

Cure: sum the squares of the shards over the group, and add those of the replicated
gradients once. `torch.nn.utils.clip_grad_norm_` does so for DTensors, if replicated
parameters are DTensors too, with `Replicate()`.

Next time: gather all shards once and take the norm of the whole. Log the norm at two
tensor-parallel sizes: it must be the same.

Links: https://github.com/NVIDIA-NeMo/RL/pull/3788 (norms of queries and keys are replicated, and counted once per rank)
https://github.com/ROCm/TransformerEngine/pull/715 (the logged norm was 1.4 and 1.5 times too large on 8 ranks)
"""

# %% given
shard = torch.tensor([[3.0], [4.0]][rank])  # of one gradient, each rank has a part
replicated = torch.tensor([12.0])  # the gradient of a norm layer, equal on all ranks

# %% broken
squares = shard.square().sum() + replicated.square().sum()
dist.all_reduce(squares)
norm = squares.sqrt()
print(f"norm {norm.item():.2f}")

# %% fixed
squares = shard.square().sum()
dist.all_reduce(squares)
norm = (squares + replicated.square().sum()).sqrt()
print(f"norm {norm.item():.2f}")

# %% invariant: it is the norm of the whole gradient on one process
parts = [torch.empty_like(shard) for _ in range(world_size)]
dist.all_gather(parts, shard)
want = torch.cat([*parts, replicated]).norm().item()
assert abs(norm.item() - want) < 1e-4, f"norm {norm.item():.2f} instead of {want:g}"
