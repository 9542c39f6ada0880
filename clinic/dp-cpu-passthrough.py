r"""nn.DataParallel without GPUs does nothing.

class: DataParallel
symptom: silent
runs on: one process
chapter: ch2_data_parallel
signature: the model ran once, on 8 samples
guard: DataParallel has no devices

You see: a script with `nn.DataParallel(model, device_ids=[0, 1])` runs on a laptop, and
nothing is parallel. Even device ids that do not exist are accepted.

Cause: without an accelerator the wrapper keeps no devices, checks nothing, and calls
your module with the whole batch. Only the keys of the state dict get their `module.`.

Cure: do not rely on such a run. What happens only with several devices has to be tried
on several: here, on virtual ones.

Next time: `print(model.device_ids)`. An empty list means that the wrapper is switched
off.

Links: https://github.com/pytorch/pytorch/issues/7457 (the lines that switch it off without a GPU)
"""

# %% given
import torch
from torch import nn

shares = []


class Net(nn.Linear):
    def forward(self, x):
        shares.append(len(x))
        return super().forward(x)


# %% broken
net = Net(2, 1)
parallel = nn.DataParallel(net, device_ids=[0, 1])
parallel(torch.ones(8, 2))
print("device_ids:", parallel.device_ids)

# %% fixed
from allranks import vgpu

vgpu.plug_in(2, kind="cuda")
net = Net(2, 1).to("cuda:0")
parallel = nn.DataParallel(net, device_ids=[0, 1])
parallel(torch.ones(8, 2))
print("device_ids:", parallel.device_ids)

# %% invariant: each device gets its share of the batch
assert shares != [8], "the model ran once, on 8 samples"
assert shares == [4, 4], f"shares of {shares}"

# %% guarded
from allranks.guard import Guard

net = Net(2, 1)
parallel = nn.DataParallel(net, device_ids=[0, 1])
watch = Guard(parallel)

# %% signs
# with: nn\.DataParallel\(
