r"""A forked worker waits for a lock that is never released.

class: data
symptom: hang
runs on: 3 ranks
chapter: ch5_ddp
signature: rank 0 waits in `for batch in batches:`

You see: a rank that stands still where an epoch or a validation begins, once in many
runs. The others wait for it in a collective. py-spy shows that rank in `_try_get_data`
and one of its workers in `acquire`, or in C code of a lock.

Cause: a fork copies the memory of a process, but only the thread that forks. If another
thread holds a lock at that moment, the copy of the lock is locked, and the thread that
would release it does not exist in the worker. The worker waits at its first use of that
lock: a log's, a progress bar's, OpenMP's, an image library's. (Here the main thread
takes the lock, so that it happens each time.)

Cure: start the workers before other threads do anything: `persistent_workers=True` and
`iter(loader)` early. Or let workers begin as new processes, which inherit no lock:
`multiprocessing_context="forkserver"`, the default from Python 3.14 on. `num_workers=0`
for a short validation does it as well.

Next time: give the loader a `timeout`, so that the rank ends with a sentence instead of
waiting; then `py-spy dump --pid` on each worker of the rank that is behind.

Links: https://github.com/pytorch/pytorch/issues/75147 (in a subprocess, now and then)
https://github.com/ultralytics/ultralytics/pull/26085 (an image decoder's lock: 8 of 8 workers)
https://github.com/RolnickLab/ami-data-companion/issues/140 (a worker silent for 23 hours)
"""

# %% given
import threading

from torch.utils.data import DataLoader

log = threading.Lock()  # shared by several threads, as a log is


def read(rows):
    """Read a batch, and note it in the log."""
    with log:
        return torch.tensor(rows)


fork = {"num_workers": 1, "multiprocessing_context": "fork"}
loader = DataLoader(range(8), 4, collate_fn=read, **fork)

# %% broken
if rank == 0:
    log.acquire()  # another thread writes, when
batches = iter(loader)  # the workers are forked
if rank == 0:
    log.release()
for batch in batches:
    dist.all_reduce(total := batch.sum())
print("sum:", total.item())

# %% fixed
batches = iter(loader)  # the workers are forked, before
if rank == 0:
    log.acquire()  # another thread writes
if rank == 0:
    log.release()
for batch in batches:
    dist.all_reduce(total := batch.sum())
print("sum:", total.item())

# %% signs
# maybe: _try_get_data \(torch/utils/data/dataloader
