r"""Grad can be implicitly created only for scalar outputs.

class: DataParallel
symptom: crash
runs on: 2 virtual GPUs
chapter: ch2_data_parallel
signature: grad can be implicitly created only for scalar outputs

You see: a warning (`Was asked to gather along dimension 0, but all input tensors were
scalars`), and then `backward()` refuses: `grad can be implicitly created only for
scalar outputs`. With one GPU the script works.

Cause: the loss is computed in forward, on each device for its share of the batch.
DataParallel joins outputs along the batch dimension; numbers have none, so it makes a
vector with one loss per device.

Cure: `loss.mean().backward()`. That is the loss of the whole batch if all shares are
equally large; if the last share is smaller, weight them by size, or return the output
and compute the loss outside.

Next time: `print(loss.shape)`. It has to be `torch.Size([])`.

Links: https://github.com/pytorch/pytorch/issues/9811 (a model that returns its loss)
https://github.com/airsplay/lxmert/issues/17 (what the warning means)
https://github.com/pytorch/pytorch/issues/7956 (torch 0.4: an error instead of the warning)
"""

# %% given
import torch
from torch import nn


class Net(nn.Linear):
    def forward(self, x, y):
        return nn.functional.mse_loss(super().forward(x), y)


net = Net(1, 1).to("cuda:0")
nn.init.ones_(net.weight)
nn.init.zeros_(net.bias)
parallel = nn.DataParallel(net, device_ids=[0, 1])
x, y = torch.arange(4.0).view(4, 1), torch.zeros(4, 1)

# %% broken
loss = parallel(x, y)
loss.backward()
print("loss", loss.tolist(), "gradient", net.weight.grad.item())

# %% fixed
loss = parallel(x, y).mean()
loss.backward()
print("loss", loss.tolist(), "gradient", net.weight.grad.item())

# %% signs
# maybe: Was asked to gather along dimension 0, but all input tensors were scalars
# maybe: grad can be implicitly created only for scalar outputs
# with: nn.parallel|[Dd]ata_?[Pp]arallel|Data parallel|asked to gather
# maybe: zero-dimensional tensor \(at position \d+\) cannot be concatenated
# maybe: dimension specified as 0 but tensor has no dimensions
# with: ", line \d+, in (?:train|main|run|fit|<module>|train_\w+|training_step)$
# with: device_ids|gpu_ids|multi_gpu|multi-gpu|CUDA_VISIBLE_DEVICES
# with: ^\W*(?:RuntimeError: )?grad can be implicitly created only for scalar outputs\W*$
