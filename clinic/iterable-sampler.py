r"""TypeError: object has no len(): a DistributedSampler over a stream.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: TypeError: object of type 'Stream' has no len\(\)

You see: a `TypeError` from the sampler's constructor, on every rank.

Cause: a sampler chooses indices, so it needs to know how many there are. An
`IterableDataset` has no indices and no length; it decides itself what comes next. Other
samplers fail as well: the `DataLoader` refuses them.

Cure: use no sampler. Divide the stream in `__iter__`, over the ranks, and over each
rank's workers if it has some.

Next time: ask of a dataset whether it has `__getitem__` (then a sampler divides it) or
`__iter__` (then it must divide itself).

Links: https://github.com/huggingface/transformers/issues/5829 (a sampler for an iterable dataset is refused)
https://github.com/pytorch/ignite/issues/1076 (DistributedSampler asks an iterable dataset for its length)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset


# %% broken
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(8)


dataset = Stream()
sampler = DistributedSampler(dataset)
print([int(i) for i in DataLoader(dataset, None, sampler=sampler)])


# %% fixed
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(dist.get_rank(), 8, dist.get_world_size())


dataset = Stream()
print([int(i) for i in DataLoader(dataset, None)])

# %% signs
# object of type '\w*(?:Iter|Stream)\w*' has no len\(\)
# DataLoader with IterableDataset: expected unspecified
# with: utils.data.distributed\.py
# maybe: object of type '\w+' has no len\(\)
