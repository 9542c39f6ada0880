r"""Evaluation runs out of memory, though training did not.

class: performance
symptom: slow
runs on: one process
chapter: ch11_memory
signature: \d+ KiB kept for a backward that never comes

You see: training runs for an epoch, and evaluation stops with `out of memory`. Or
memory grows from batch to batch of the evaluation, and falls when it is over.

Cause: without `torch.no_grad()` each forward keeps its activations for backward. In
training, backward frees them. In evaluation nobody calls backward, so they live as long
as the loss does, and a sum or a list of losses keeps those of all batches. `model.eval()`
doesn't help, since it only changes what dropout and batch norm do.

Cure: `with torch.no_grad():` around the evaluation, and `.item()` or `.detach()` on what
you sum or collect. In training, detach what you log, too: a loss whose backward has run
keeps only little, but one that was never part of backward keeps everything.

Next time: print `torch.cuda.memory_allocated()` before each batch. If it grows, look for
a name outside the loop that holds a tensor with a `grad_fn`.

Links: https://github.com/skorch-dev/skorch/issues/218 (a library whose validation forgot it)
https://github.com/hszhao/semseg/issues/60 (out of memory after the first epoch)
https://github.com/jostmey/NakedAttention/issues/1 (sums of losses with their graphs)
https://github.com/pytorch/pytorch/pull/5251 (what a loss keeps if its backward has run)
"""

# %% given
import weakref

from torch import nn
from torch.autograd.graph import saved_tensors_hooks


class Kept:
    def __init__(self, tensor):
        self.tensor = tensor
        alive.add(self)


alive = weakref.WeakSet()  # what autograd keeps for backward
layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())]
model = nn.Sequential(*layers).eval()
batches = torch.randn(10, 128, 64)
hooks = saved_tensors_hooks(Kept, lambda kept: kept.tensor)

# %% broken
total = 0
with hooks:
    for x in batches:
        total += model(x).square().mean()
print(f"mean loss {total / len(batches):.3f}")

# %% fixed
total = 0
with hooks, torch.no_grad():
    for x in batches:
        total += model(x).square().mean().item()
print(f"mean loss {total / len(batches):.3f}")

# %% invariant: after the evaluation nothing is kept for backward
KiB = sum({k.tensor.data_ptr(): k.tensor.nbytes for k in alive}.values()) // 1024
assert not KiB, f"{KiB} KiB kept for a backward that never comes"
