"""Do DataParallel's replicas share the optimizer's parameters?

runs on: 2 virtual GPUs
outcome: runs
hardware: GPU
chapter: ch2_data_parallel

"The optimizer's parameters are shared by all replicas." There is one module, on the
first device, and one optimizer for it. In each forward, DataParallel copies the module
to the devices, runs the copies on their parts of the batch, and forgets them. What the
replicas compute with are copies; backward adds up their gradients into the one module.
"""

# %% given
import torch
from torch import nn

replicas = []


class Net(nn.Linear):
    def forward(self, x):
        replicas.append((f"{x.device}: {len(x)} samples", self.weight))
        return super().forward(x)


net = Net(1, 1, bias=False).to("cuda:0")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
(trained,) = optimizer.param_groups[0]["params"]
parallel = nn.DataParallel(net, device_ids=[0, 1])
parallel(torch.ones(8, 1)).sum().backward()

# %% claim
for name, weight in sorted(replicas, key=lambda replica: replica[0]):
    print(name, "- the optimizer's weight:", weight is trained)

# %% fact
print("gradient in the one module:", net.weight.grad.item(), "on", net.weight.device)
print("its weight is the optimizer's:", net.weight is trained)
