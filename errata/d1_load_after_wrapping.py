"""Keys that begin with `module.`

runs on: one process
outcome: raises
chapter: ch3_save_load

The section shows this error, and two fixes that work. It is right, and its first fix
(save `net.module`) is still the best. PyTorch now has a third, for files that were
saved wrapped. (`torch.compile` adds a prefix of its own, `_orig_mod.`, which needs its
own removal.)
"""

# %% given
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

net = nn.Linear(2, 1)
state = nn.DataParallel(net).state_dict()

# %% wrong
net.load_state_dict(state)

# %% right
consume_prefix_in_state_dict_if_present(state, "module.")
print(net.load_state_dict(state))
