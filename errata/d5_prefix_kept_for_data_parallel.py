"""The API that strips the prefix, sometimes.

runs on: 2 ranks
outcome: runs
chapter: ch3_save_load

`get_model_state_dict` is today's way to get keys without prefixes. It removes DDP's
but keeps DataParallel's, so unwrap a DataParallel yourself.
"""

# %% given
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

net = nn.Linear(2, 1)

# %% wrong
print(list(get_model_state_dict(nn.DataParallel(net))))

# %% right
print(list(get_model_state_dict(DistributedDataParallel(net))))
print(list(get_model_state_dict(nn.DataParallel(net).module)))
