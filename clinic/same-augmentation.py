r"""All ranks draw the same random numbers.

class: data
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: AssertionError: the ranks drew 2 numbers, 1 of them different
guard: seed is the same on ranks 0, 1

You see: nothing. Sample k of every rank gets the same crop and flip, and every rank
drops the same units: less noise in the gradient than you asked for.

Cause: one seed on all ranks makes not only the initial weights equal, but also
everything drawn later: dropout masks, noise, and the base seed from which a loader
derives those of its workers.

Cure: build the model first, then seed each rank differently. (DDP broadcasts rank 0's
weights anyway.) Whatever the ranks must agree on, such as the sampler's permutation,
has its own seed.

Next time: print one `torch.rand(())` per rank in the training loop, and one in
`__getitem__`.

Links: https://github.com/facebookresearch/detr/issues/297 (why the rank is added to the seed)
https://github.com/huggingface/transformers/issues/37932 (workers of different ranks share their seeds)
https://github.com/huggingface/transformers/issues/31412 (equal dropout masks on all GPUs cost accuracy)
"""

# %% given
from torch import nn
from torch.utils.data import DataLoader


class Noisy(torch.utils.data.Dataset):
    """Samples that a worker process shifts by a random amount."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.rand(())


def first_noise():
    """What worker 0 of this rank draws. (A script on Linux forks, too.)"""
    loader = DataLoader(Noisy(), num_workers=1, multiprocessing_context="fork")
    return round(next(iter(loader)).item(), 4)


# %% broken
torch.manual_seed(0)
model = nn.Linear(4, 4)
noise = first_noise()
print("weight", round(model.weight[0, 0].item(), 4), "augmentation", noise)

# %% fixed
torch.manual_seed(0)
model = nn.Linear(4, 4)
torch.manual_seed(0 + rank)
noise = first_noise()
print("weight", round(model.weight[0, 0].item(), 4), "augmentation", noise)

# %% invariant: every rank draws augmentations of its own
drawn = [None] * world_size
dist.all_gather_object(drawn, noise)
apart = len(set(drawn))
count = f"the ranks drew {world_size} numbers, {apart} of them different"
assert apart == world_size, count

# %% guarded
from allranks.guard import Guard

torch.manual_seed(0)
model = nn.Linear(4, 4)
Guard(model).apart(seed=torch.initial_seed())
