r"""Takes 1 positional argument but 2 were given: spawn adds the rank.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: TypeError: worker\(\) takes 1 positional argument but 2 were given

You see: `takes 1 positional argument but 2 were given`, although `args` has only one.

Cause: `mp.spawn(worker, args=(lr,))` calls `worker(rank, lr)`. It passes the rank
first, although that is not in `args`.

Cure: write `def worker(rank, lr)`. And keep the comma, because `args=(lr)` is not a
tuple and fails with `Value after * must be an iterable`.

Next time: the message counts one argument more than you passed, which is the rank.

Links: https://github.com/pytorch/pytorch/issues/40258 (one argument more than was passed)
https://github.com/guochengqian/PointNeXt/issues/8 (the missing comma: 63 arguments)
"""

# %% given
import torch.multiprocessing as mp


# %% broken
def worker(lr):
    print("lr", lr)


mp.start_processes(worker, args=(0.1,), nprocs=1, start_method="fork")


# %% fixed
def worker(rank, lr):
    print("rank", rank, "lr", lr)


mp.start_processes(worker, args=(0.1,), nprocs=1, start_method="fork")

# %% signs
# maybe: TypeError: (?!__|forward|step|training|train_step|collate|build|get|create|load)(?:[\w.]+\.<locals>\.)?[\w<>]+\(\) (?:takes .*positional arguments? but \d+ (?:was|were) given|missing \d required positional arg)
# maybe: (?:Value|argument) after \* must be an iterable, not
# with: ProcessRaisedException
# with: torch.multiprocessing.spawn
