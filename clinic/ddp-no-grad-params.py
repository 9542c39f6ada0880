r"""DistributedDataParallel is not needed: the model is frozen.

class: DDP
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: DistributedDataParallel is not needed when a module doesn't have any parameter

You see: the constructor of DDP refuses a teacher, an averaged copy or a pretrained
feature extractor.

Cause: DDP exists to share gradients. A module that is frozen, or has no parameters, has
none to share.

Cure: do not wrap it; move it to the device and put it into `eval()`. Only what learns
goes into DDP. If it should learn, it was frozen by mistake: adapters often freeze the
base model and are trainable themselves only once they are activated.

Next time: `sum(p.requires_grad for p in model.parameters())` before wrapping.

Links: https://github.com/huggingface/accelerate/issues/760 (modules without parameters get wrapped)
https://github.com/pytorch/pytorch/issues/45326 (a feature extractor in eval mode)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

teacher = nn.Linear(4, 2).requires_grad_(False)
student = nn.Linear(4, 2)

# %% broken
teacher = DistributedDataParallel(teacher)
student = DistributedDataParallel(student)
print("ready to distil")

# %% fixed
teacher = teacher.eval()
student = DistributedDataParallel(student)
print("ready to distil")

# %% signs
# doesn.?t have any parameters? that requires? a gradient|is not needed when a module doesn
# maybe: tensors\.size\(\) > 0 INTERNAL ASSERT FAILED at .*reducer\.cpp
