r"""Too many DataLoader workers: num_workers is per rank.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch9_data
signature: 8 workers a core instead of at most 1

You see: a warning about the suggested number of workers, if you are lucky; otherwise
only more context switches, more memory, and epochs that start late.

Cause: each rank has a DataLoader of its own, and each makes `num_workers` processes: 8
ranks with 8 workers are 64. torch compares the number with the cores that this process
may use, not with its share of them.

Cure: start from the machine's cores divided by its ranks, then measure whether fewer
are as fast.

Next time: `pstree` or `top` on one node; and what this process may use:
`len(os.sched_getaffinity(0))`.

Links: https://docs.pytorch.org/docs/stable/data.html (multi-process data loading)
"""

# %% given
import os

from torch.utils.data import DataLoader, TensorDataset

if hasattr(os, "sched_setaffinity"):  # one core for each rank, as a scheduler gives
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
data, cores_of_a_rank = TensorDataset(torch.arange(8.0)), 1

# %% broken
loader = DataLoader(data, num_workers=8)
print("workers of this rank:", loader.num_workers)

# %% fixed
loader = DataLoader(data, num_workers=cores_of_a_rank)
print("workers of this rank:", loader.num_workers)

# %% invariant: no more workers than cores
workers = loader.num_workers / cores_of_a_rank
assert workers <= 1, f"{workers:g} workers a core instead of at most 1"

# %% signs
# This DataLoader will create \d+ worker processes in total
