"""Answers to exercise 2.1 that the check must take or refuse."""

# %% right: narrow() instead of a slice, and a tuple, which is as good as a list
import math


def ex2_1(batch, num_devices):
    size, shards, start = math.ceil(batch.size(0) / num_devices), (), 0
    while start < batch.size(0):
        length = min(size, batch.size(0) - start)
        shards += (batch.narrow(0, start, length),)
        start += length
    return shards


# %% wrong: rounds down, and the rest is lost or makes one shard too many
# ~ -(-len(batch) // num_devices)  # rounded up => max(1, len(batch) // num_devices)
# %% wrong: shares the rest evenly, as tensor_split does
# = small, rest = divmod(len(batch), num_devices)
# = sizes = [small + 1 if i < rest else small for i in range(num_devices)]
# = starts = [sum(sizes[:i]) for i in range(num_devices)]
# = return [batch[a : a + n] for a, n in zip(starts, sizes) if n]
# %% wrong: deals the samples out like cards
# = return [batch[i::num_devices] for i in range(min(num_devices, len(batch)))]
# %% wrong: copies
# ~ [i : i + size] => [i : i + size].clone()
# %% wrong: empty shards for the devices that get nothing
# - return [batch[i : i + size] for i in range(0, len(batch), size)]
# + return [batch[i * size : (i + 1) * size] for i in range(num_devices)]
# %% wrong: calls chunk
# = return list(batch.chunk(num_devices))
# %% wrong: calls split, by its own name
# + from torch import split
# = return split(batch, -(-len(batch) // num_devices))
# %% wrong: lets NumPy split, which knows no GPU
# + import numpy as np
# + import torch
#   size = -(-len(batch) // num_devices)  # rounded up
# + parts = np.split(batch.numpy(), range(size, len(batch), size))
# + return [torch.from_numpy(part) for part in parts]
