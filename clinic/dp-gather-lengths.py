r"""Gather got an input of invalid size: padding differs per GPU.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: invalid s(?:ize|hape)|Sizes of tensors must match

You see: `Gather got an input of invalid size: got [10, 26, 9961], but expected [10, 35, 9961]`
(newer: `Input tensor at index 1 has invalid shape`; here, without GPUs, `Sizes of tensors
must match`), in some batches only. With one GPU
the script works.

Cause: DataParallel joins the outputs of the replicas along the batch dimension, so all
other dimensions have to agree. A model that unpacks or trims its share to the longest
sample in it returns a different length on each GPU.

Cure: give all replicas the same length: pad to the length of the whole batch
(`pad_packed_sequence(..., total_length=n)`), with `n` taken outside of the model. Or
return the loss of each sample rather than its outputs.

Next time: print `output.shape` in forward: the message names two shapes that differ
beyond the first dimension.

Links: https://github.com/pytorch/pytorch/issues/44141 (two sequences, 230 and 231)
https://github.com/pytorch/pytorch/issues/27046 (a constant that DataParallel split, too)
https://github.com/pytorch/pytorch/issues/52289 (the words of torch 1.7)
"""

# %% given
import torch
from torch import nn


class Net(nn.Linear):
    def forward(self, x, lengths, total=None):
        longest = total or int(lengths.max())  # of this share
        return super().forward(x[:, :longest])


net = nn.DataParallel(Net(3, 2).to("cuda:0"), device_ids=[0, 1])
x, lengths = torch.ones(4, 6, 3), torch.tensor([6, 5, 4, 3])

# %% broken
print(tuple(net(x, lengths).shape))

# %% fixed
print(tuple(net(x, lengths, total=int(lengths.max())).shape))

# %% signs
# [Gg]ather got an input of invalid size
# Input tensor at index \d+ has invalid shape
