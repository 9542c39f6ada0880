r"""DDP expects same model across all ranks: parameter counts differ.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: RuntimeError: DDP expects same model across all ranks

You see: the constructor of DDP fails on all ranks; each reports its own number of
parameters and the number of another rank.

Cause: the ranks' configurations differ: a different file, a different default, or a
layer that is added only on rank 0. "inconsistent 0 params" means something else, namely
that nothing arrived from that rank. It has died, is waiting for a download, or NCCL
cannot reach it because of two ranks on one GPU or the wrong network interface.

Cure: build the model from one configuration on all ranks. With 0 params, look at what
the other rank printed before, and at the output of `NCCL_DEBUG=INFO`.

Next time: print `len(list(model.parameters()))` on every rank before wrapping.

Links: https://github.com/huggingface/accelerate/issues/1481 (inconsistent params on several nodes)
https://github.com/SWivid/F5-TTS/issues/1008 (0 params on several nodes; NCCL's network settings)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# %% broken
layers = [nn.Linear(4, 4) for _ in range(1 + rank)]
ddp = DistributedDataParallel(nn.Sequential(*layers))
print(len(list(ddp.parameters())), "parameters")

# %% fixed
config = [{"layers": 1 + rank}]
dist.broadcast_object_list(config, src=0)
layers = [nn.Linear(4, 4) for _ in range(config[0]["layers"])]
ddp = DistributedDataParallel(nn.Sequential(*layers))
print(len(list(ddp.parameters())), "parameters")

# %% signs
# DDP expects same model across all ranks
# with: while rank \d+ has inconsistent \d+ params
# Model replicas must have an equal number of parameters
