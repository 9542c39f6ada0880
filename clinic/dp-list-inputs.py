r"""IndexError: DataParallel does not split a list of numbers.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: IndexError: index 2 is out of bounds for dimension 0 with size 2

You see: an `IndexError` or a shape that does not fit, in every replica: the input has
half of the batch, but the lengths are for the whole batch.

Cause: scatter splits tensors along the batch dimension, and looks for tensors in lists
and dicts. Numbers and strings are not split; each device gets all of them.

Cure: pass what belongs to samples as a tensor.

Next time: print the lengths of all arguments inside forward, with `x.device`.

Links: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html (what is scattered, and what is copied)
"""

# %% given
import torch
from torch import nn


class LastStep(nn.Linear):
    def forward(self, x, lengths):
        last = [x[i, int(n) - 1] for i, n in enumerate(lengths)]
        return super().forward(torch.stack(last))


parallel = nn.DataParallel(LastStep(3, 1).to("cuda:0"), device_ids=[0, 1])
x = torch.ones(4, 5, 3)

# %% broken
lengths = [5, 3, 4, 2]
print("output:", parallel(x, lengths).shape)

# %% fixed
lengths = torch.tensor([5, 3, 4, 2])
print("output:", parallel(x, lengths).shape)

# %% signs
# maybe: Caught IndexError in replica \d+ on device \d+
# maybe: chunk expects at least a 1-dimensional tensor
# maybe: Expected `len\(lengths\)` to be equal to batch_size
# with: nn.parallel|[Dd]ata_?[Pp]arallel|in replica \d|chunk expects at
