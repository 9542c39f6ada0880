r"""Missing key(s) that differ only by `module.`.

class: checkpoint
symptom: crash
runs on: 1 rank
chapter: ch3_save_load
signature: RuntimeError: Error\(s\) in loading state_dict for Linear:\n.*Missing key.*\n.*"module\.weight"

You see: `Missing key(s)` and `Unexpected key(s)` that differ only by `module.`.

Cause: DDP and DataParallel hold the model as their attribute `module`, so all keys of
their state dict begin with that name. The model that loads the file is not wrapped. Or
the file is of a bare model, and the model that loads it is wrapped.

Cure: save `ddp.module.state_dict()`. For files that already exist,
`consume_prefix_in_state_dict_if_present` from `torch.nn.modules.utils` takes the prefix
off. Don't use `strict=False`, which loads nothing and does not tell you.

Next time: print the first key of the file and of the model.

Links: https://github.com/pytorch/pytorch/issues/3805 (the prefix that DataParallel adds, and why)
https://github.com/aks2203/deep-thinking/issues/5 (the message in full, from a model trained in parallel)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(2, 2))

# %% broken
torch.save(ddp.state_dict(), "model.pt")
model = nn.Linear(2, 2)
print(model.load_state_dict(torch.load("model.pt")))

# %% fixed
torch.save(ddp.module.state_dict(), "model.pt")
model = nn.Linear(2, 2)
print(model.load_state_dict(torch.load("model.pt")))

# %% signs
# [Uu]nexpected key "module\.[\w.]+" in state_dict
# in source state_dict: module\.
# KeyError: '?\W?module\.\w+\.|not used by the model: *module\.
# maybe: ^(?!.*(?:missing_keys=|not used when init)).*["']module\.\w+\.(?![\w.]*num_batches_tracked)[\w.]+["']
# [Uu]nexpected key\(s\) in state_dict: "?module\.(?!module\.)(?![\w.]*num_batches_tracked)
# [Kk]ey\(s\) in state_dict: "?module\.(?!module\.)(?![\w.]*num_batches_tracked)[^"]*(?:", "module\.[^"]*){6}
# key\(s\) in state_dict: "?module\.(?!module\.)(?![\w.]*num_batches_tracked)[^"]*(?:", "module\.[^"]*)*",? ?\.\.
# maybe: [Mm]issing key\(s\) in state_dict: "?module\.(?!module\.)
# with: [Uu]nexpected key
# with: KeyError: |source state_dict
# keys: module\.
# unless: "module\.module\.
# unless: state_dict for (?:Distributed)?DataParallel:?\s*Unexpected key\(s\) in state_dict: "?module\.
