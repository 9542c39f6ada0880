r"""Every rank uses as many CPU threads as the machine has cores.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch4_ranks
signature: 2 threads a core instead of 1

You see: two ranks on one machine are slower than one, and all cores are at 100 %.

Cause: without torchrun (in `mp.spawn`, in notebooks, under MPI) a process gets a thread
per core. W ranks start W threads per core, which take turns, and at the end of each
parallel loop all wait for the one that was not running.

Cure: divide the cores by the ranks, and set that number with `torch.set_num_threads`,
or as OMP_NUM_THREADS in the environment, which MKL and OpenMP read as they start.

Next time: compare `torch.get_num_threads()` on a rank, times the ranks, with `nproc`.

Links: https://github.com/pytorch/pytorch/issues/22260 (slower with more than 4 GPUs, a process each)
https://github.com/pytorch/torchtitan/pull/4031 (spawned processes take every core)
"""

# %% given
import os

cores = max(os.cpu_count(), world_size)

# %% broken
torch.set_num_threads(cores)  # what torch does by itself
y = torch.ones(64, 64) @ torch.ones(64, 64)
print("computed", y.sum().item())

# %% fixed
torch.set_num_threads(cores // world_size)
y = torch.ones(64, 64) @ torch.ones(64, 64)
print("computed", y.sum().item())

# %% invariant: the threads of all ranks have a core each
threads = torch.tensor(torch.get_num_threads())
dist.all_reduce(threads)
per_core = threads.item() / cores
assert per_core <= 1, f"{per_core:g} threads a core instead of 1"
