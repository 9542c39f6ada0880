r"""nn.DataParallel loses what forward stores in the module.

class: DataParallel
symptom: silent
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: 0 samples seen instead of 8
beyond: The guard compares ranks. Here, a single process loses what its own replicas have stored in themselves.

You see: a counter stays 0, a cache is always empty, or a moving average never moves,
although all of them work on one GPU.

Cause: every forward makes new copies of the module, one per device, and throws them
away afterwards, so `self.seen += n` writes to a copy. (A buffer that is changed in
place survives on the first device only, with that device's share.)

Cure: return the value and keep it in the training loop, or use DDP, where the module
itself runs.

Next time: compare `id(self)` inside forward with `id(model.module)`.

Links: https://github.com/pytorch/pytorch/issues/2864 (a counter that stays 0)
https://github.com/pytorch/pytorch/issues/1051 (BatchNorm's statistics of the other devices)
"""

# %% given
import torch
from torch import nn


class Net(nn.Linear):
    seen = 0

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x), torch.tensor([len(x)], device=x.device)


net = Net(2, 1).to("cuda:0")
parallel = nn.DataParallel(net, device_ids=[0, 1])

# %% broken
output, shares = parallel(torch.ones(8, 2))
seen = net.seen
print("samples seen:", seen)

# %% fixed
output, shares = parallel(torch.ones(8, 2))
seen = shares.sum().item()
print("samples seen:", seen)

# %% invariant: the module has seen the whole batch
assert seen == 8, f"{seen} samples seen instead of 8"
