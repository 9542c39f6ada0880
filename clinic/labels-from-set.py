r"""Ranks assign different label numbers to the same class.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: class \d is \w+ on one rank and \w+ on the other
guard: Animals\.numbers\['\w+'\] is

You see: the loss falls slowly and then stalls, and accuracy is near chance, although
each rank alone would train well.

Cause: the table from names to numbers was made from a set. Python salts the hash of
strings in each process, so a set of strings has a different order on each rank, and
class 0 is a cat here and a dog there. DDP averages gradients towards contradicting
targets. Using `hash()` of a string as an identifier has the same effect.

Cure: sort the names before you number them, or save the table and load it on all ranks.
`PYTHONHASHSEED=0` in the environment hides it, until somebody starts the job without it.

Next time: gather the table of each rank and compare.

Links: https://github.com/sktime/pytorch-forecasting/issues/2293 (hash() of a string, another one on each rank)
https://github.com/google-deepmind/dmvr/issues/6 (labels numbered in the order of a set)
"""

# %% given
names = ["cat", "dog", "emu", "fox"]
names = names[rank:] + names[:rank]  # as list(set(...)) orders them in this process

# %% broken
numbers = {name: number for number, name in enumerate(names)}
print(f"cat is class {numbers['cat']}")

# %% fixed
numbers = {name: number for number, name in enumerate(sorted(names))}
print(f"cat is class {numbers['cat']}")

# %% invariant: a number means one class on all ranks
tables = [None] * world_size
dist.all_gather_object(tables, {number: name for name, number in numbers.items()})
for number, name in tables[0].items():
    other = tables[-1][number]
    assert name == other, (
        f"class {number} is {name} on one rank and {other} on the other"
    )

# %% guarded
from allranks.guard import Guard


class Animals(torch.utils.data.Dataset):
    def __init__(self):
        self.numbers = {name: number for number, name in enumerate(names)}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(index)


data = Animals()
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
for batch in Guard().epoch(loader, 0):
    pass
