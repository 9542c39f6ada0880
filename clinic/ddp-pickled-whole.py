r"""Default process group has not been initialized: a pickled DDP model.

class: checkpoint
symptom: crash
runs on: 1 rank
chapter: ch3_save_load
signature: ValueError: Default process group has not been initialized

You see: `Default process group has not been initialized` from `torch.load`, in a script
for inference that never meant to be distributed.

Cause: `torch.save(ddp_model)` pickles the wrapper too. A process group cannot be
pickled, so DDP fetches the default group when it is unpickled, and there is none.
(Before that, torch 2.6 and later refuse to unpickle any module unless you pass
`weights_only=False`.)

Cure: save the state dict of what is inside: `ddp.module.state_dict()`. To rescue an
existing file, load it once in a group of one process, and save its state dict.

Next time: a checkpoint should hold tensors and plain values only. Check whether
`torch.load(path, weights_only=True)` reads it.

Links: https://github.com/xinyangATK/GraphBetaDiffusion/issues/5 (a checkpoint from DDP training asks for a group)
https://github.com/Lightning-AI/pytorch-lightning/issues/2254 (one answer: the message after load_from_checkpoint)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ddp = DistributedDataParallel(nn.Linear(2, 2))

# %% broken
torch.save(ddp, "model.pt")

dist.destroy_process_group()  # from here on: another program, without a group
model = torch.load("model.pt", weights_only=False)
print(model)

# %% fixed
torch.save(ddp.module.state_dict(), "model.pt")

dist.destroy_process_group()  # from here on: another program, without a group
model = nn.Linear(2, 2)
print(model.load_state_dict(torch.load("model.pt")))

# %% signs
# nn.parallel.distributed\.py", line \d+, in __setstate__
# Unsupported global: GLOBAL torch\.nn\.parallel\.distributed\.DistributedDataParallel
# with: Default process group has not been initialized
