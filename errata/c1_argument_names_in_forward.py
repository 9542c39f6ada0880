"""A constructor's argument, used in `forward`.

runs on: one process
outcome: raises
chapter: ch6_model_parallel

`forward` names the devices as `__init__` did. But arguments live only as long as the
call, so a module must store what it needs later. Or let the parameters say where they
are: that stays true when somebody moves the module.
"""

# %% given
import torch
from torch import nn

x = torch.ones(1, 2)


# %% wrong
class Half(nn.Module):
    def __init__(self, device1):
        super().__init__()
        self.layer = nn.Linear(2, 1).to(device1)

    def forward(self, x):
        return self.layer(x.to(device1))


Half("cpu")(x)


# %% right
class Half(nn.Module):
    def __init__(self, device1):
        super().__init__()
        self.layer = nn.Linear(2, 1).to(device1)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.device))


print(Half("cpu")(x).shape)
