r"""device_ids names a GPU that the model is not on.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: device_ids and output_device arguments only work with single-device

You see: the constructor of DDP refuses. Its message ends with the devices on which the
parameters really are.

Cause: `device_ids=[rank]` says that the whole model is on this one GPU. Here it is on
the CPU, because there is no GPU or because `.to(device)` is missing. A model that was
spread over several GPUs (`device_map="auto"`) fails in the same way.

Cure: pass `device_ids` only if the model is on one GPU, after `.to(device)`. Leave it
out on the CPU and for a model on several GPUs.

Next time: read the end of the message: `{device(type='cpu')}` means a forgotten `.to`,
several indices mean a model that is spread over GPUs.

Links: https://github.com/pytorch/pytorch/issues/100243 (device_ids given, parameters on the CPU)
https://github.com/chenyiwan/chatglm-6b-fine-tuning/issues/11 (a model spread over two GPUs)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# %% broken
model = nn.Linear(4, 2)
ddp = DistributedDataParallel(model, device_ids=[local_rank])
print("on", next(ddp.parameters()).device)

# %% fixed
model = nn.Linear(4, 2).to(device)
on_gpu = [device.index] if device.type != "cpu" else None
ddp = DistributedDataParallel(model, device_ids=on_gpu)
print("on", next(ddp.parameters()).device)

# %% signs
# device_ids and output_device arguments only work|work with single-device
# device_ids can only be None or contain a single element
