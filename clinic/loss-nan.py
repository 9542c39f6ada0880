r"""Loss is NaN on one rank; a step later, all weights are NaN.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: Loss is nan, stopping training

You see: `Loss is nan, stopping training`, on all ranks or on one; or the loss is
printed as `nan` from some step on, and never recovers.

Cause: the mean of gradients with one NaN in it is NaN, so one bad value on a single
rank (a broken sample, an empty batch, the logarithm of zero, an overflow in float16)
ends the training on all: the next step writes NaN into every weight of every rank. A
step later you can no longer see which rank began.

Cure: check before the step, on all ranks together: reduce a flag with `MAX`, and skip
the step on all ranks if it is set. Then repair the sample or the line: here it is a
logarithm that may meet zero.

Next time: log `torch.isfinite(loss)` with the rank and the sample's number, before the
all-reduce. `torch.autograd.set_detect_anomaly(True)` names the operation.

Links: https://github.com/pytorch/pytorch/issues/40497 (NaN with DDP and mixed precision)
https://github.com/pytorch/ignite/issues/2569 (TerminateOnNan ends a training after weeks)
https://github.com/HuiZhang0812/DiffusionAD/issues/33 (only on several GPUs: a small share of the batch has no normal sample)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(1, 1)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
x = torch.tensor([[0.0 if rank else 1.0]])  # rank 1 has the sample that is zero

# %% broken
loss = ddp(x).log().square().sum()
loss.backward()
optimizer.step()
if not torch.isfinite(model.weight).all():
    raise SystemExit("Loss is nan, stopping training")
print(f"weight {model.weight.item():.2f}")

# %% fixed
loss = ddp(x).clamp_min(1e-6).log().square().sum()
loss.backward()
optimizer.step()
if not torch.isfinite(model.weight).all():
    raise SystemExit("Loss is nan, stopping training")
print(f"weight {model.weight.item():.2f}")

# %% signs
# torch: [Ll]oss is (?:nan|NaN|inf|NAN)\b.{0,40}(?:stop|[Aa]bort|[Ee]xit|terminat)
# TerminateOnNan: Output .* contains NaN or Inf
# torch: FloatingPointError: (?:Minimum loss scale|Losses? (?:is|became|became) (?:infinite|nan|NaN))
# torch: [Ff]ound NaN in (?:local )?(?:forward )?(?:loss|grad)
# torch: AssertionError: .*[Ll]oss is NaN
