"""Each rank with inputs of its own.

runs on: 2 ranks
outcome: runs
chapter: ch5_ddp

The demo lets each rank draw random inputs, and a reader may think that this is how data
are shared. It is fine for a demo, since the gradients are averaged all the same. In
training, the shares must be parts of *one* data set, which a sampler deals out.
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

torch.manual_seed(rank)
ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))

# %% claim
x = torch.rand(1, 1)
ddp(x).sum().backward()
print(f"input {x.item():.3f}, gradient {ddp.module.weight.grad.item():.3f}")

# %% fact
data = torch.tensor([[0.25], [0.5], [0.75], [1.0]])
x = data[list(DistributedSampler(data, shuffle=False))]
ddp(x).mean().backward()
print(f"inputs {x.flatten().tolist()}")
print(f"gradient {ddp.module.weight.grad.item()}, mean {data.mean().item()}")
