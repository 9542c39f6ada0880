r"""Every worker of every rank streams the whole dataset.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch9_data
signature: AssertionError: 16 items came, 4 of them distinct
guard: step 8: ranks 0, 1 got exactly the same samples

You see: nothing, or an epoch that is ranks x workers times too long, because each
worker of each rank delivers every sample.

Cause: no sampler can deal out a stream. Each worker process of each rank has a copy of
the `IterableDataset` and runs its `__iter__` from the beginning.

Cure: in `__iter__`, keep every n-th item, where n counts all workers of all ranks. Read
the rank before the workers start: spawned ones have no process group. Without workers
`get_worker_info()` is None, and the rank alone decides. If the shares are unequal, the
end of the epoch hangs.

Next time: count the items of an epoch over all ranks, and how many are distinct.

Links: https://github.com/huggingface/datasets/issues/5360 (streamed data repeated on each DDP rank)
https://github.com/Lightning-AI/pytorch-lightning/issues/15734 (an iterable dataset is not divided over GPUs)
"""

# %% given
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

workers = {"num_workers": 2, "multiprocessing_context": "fork"}


# %% broken
class Stream(IterableDataset):
    reader, readers = rank, world_size

    def __iter__(self):
        yield from range(4)


loader = DataLoader(Stream(), None, **workers)
items = [int(i) for i in loader]
print(items)


# %% fixed
class Stream(IterableDataset):
    reader, readers = rank, world_size

    def __iter__(self):
        worker = get_worker_info()
        first = self.reader * worker.num_workers + worker.id
        yield from range(first, 4, self.readers * worker.num_workers)


loader = DataLoader(Stream(), None, **workers)
items = [int(i) for i in loader]
print(items)

# %% invariant: all ranks together get each item once
got = [None] * world_size
dist.all_gather_object(got, items)
flat = sorted(sum(got, []))
count = f"{len(flat)} items came, {len(set(flat))} of them distinct"
assert flat == [0, 1, 2, 3], count

# %% guarded
from allranks.guard import Guard


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(4)


watch = Guard()
loader = DataLoader(Stream(), None, **workers)
for item in watch.epoch(loader, 0):
    watch.step()
