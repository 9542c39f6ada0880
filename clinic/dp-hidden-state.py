r"""Expected hidden size: DataParallel splits the RNN state by layers.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: Expected hidden size \(2, 2, 3\), got \[1, 4, 3\]

You see: `Expected hidden size (2, 2, 3), got [1, 4, 3]` from an LSTM, GRU or RNN, also
with `batch_first=True`.

Cause: DataParallel splits every tensor along dimension 0. A hidden state has its layers
there and the batch in dimension 1, because `batch_first` changes only the input and the
output. So each device gets one layer for all samples.

Cure: pass it with the batch first, and transpose it inside forward, on the way in and
on the way out. Or create it there: without the argument it is zeros.

Next time: multiply the sizes: `got` has the right number of elements, in the wrong
dimensions.

Links: https://github.com/pytorch/pytorch/issues/7890 (batch_first does not hold for the hidden state)
"""

# %% given
import torch
from torch import nn


x = torch.ones(4, 5, 2)


# %% broken
class Net(nn.RNN):
    def forward(self, x, hidden):
        return super().forward(x, hidden)[0]


net = Net(2, 3, num_layers=2, batch_first=True).to("cuda:0")
parallel = nn.DataParallel(net, device_ids=[0, 1])
hidden = torch.zeros(2, 4, 3)
print("output:", parallel(x, hidden).shape)


# %% fixed
class Net(nn.RNN):
    def forward(self, x, hidden):
        hidden = hidden.transpose(0, 1).contiguous()
        return super().forward(x, hidden)[0]


net = Net(2, 3, num_layers=2, batch_first=True).to("cuda:0")
parallel = nn.DataParallel(net, device_ids=[0, 1])
hidden = torch.zeros(4, 2, 3)
print("output:", parallel(x, hidden).shape)

# %% signs
# Expected hidden size \(\d+, (?!1, .{1,40}got .\d+, 1,|2, .{1,40}got .\d+, 2,|4, .{1,40}got .\d+, 4,|8, .{1,40}got .\d+, 8,|10, .{1,40}got .\d+, 10,|16, .{1,40}got .\d+, 16,|20, .{1,40}got .\d+, 20,|32, .{1,40}got .\d+, 32,|40, .{1,40}got .\d+, 40,|50, .{1,40}got .\d+, 50,|64, .{1,40}got .\d+, 64,|100, .{1,40}got .\d+, 100,|128, .{1,40}got .\d+, 128,|256, .{1,40}got .\d+, 256,).*\), got .\d
# Expected hidden\[\d\] size \(\d+, (?!1, .{1,40}got .\d+, 1,|2, .{1,40}got .\d+, 2,|4, .{1,40}got .\d+, 4,|8, .{1,40}got .\d+, 8,|10, .{1,40}got .\d+, 10,|16, .{1,40}got .\d+, 16,|20, .{1,40}got .\d+, 20,|32, .{1,40}got .\d+, 32,|40, .{1,40}got .\d+, 40,|50, .{1,40}got .\d+, 50,|64, .{1,40}got .\d+, 64,|100, .{1,40}got .\d+, 100,|128, .{1,40}got .\d+, 128,|256, .{1,40}got .\d+, 256,).*\), got .\d
