r"""A bfloat16 average of the weights (EMA) never moves.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch10_precision
signature: average \S+ instead of
beyond: All ranks hold the same average, so nothing differs. Only a copy kept in float32 shows that it stands still.

You see: the model with averaged weights (EMA) is as bad as at the start, or samples of
it stay noisy, while the trained model is good. With a lower decay it works.

Cause: the average was copied from a model in bfloat16 or float16. With a decay of 0.999
each step adds a thousandth of the difference, which is less than half the gap between
two neighbors, so it is rounded away. The copy stays at the weights it began with.

Cure: keep the average in float32, and cast it when you use it. The master weights of
mixed precision are the right source.

Next time: print the distance between average and weights; it must fall when the learning
rate does.

Links: https://github.com/d8ahazard/sd_dreambooth_extension/pull/1415 (the EMA model is never updated in half precision)
https://github.com/konpatp/diffae/issues/16 (a decay of 0.9999 and float16)
"""

# %% given
import copy

from torch import nn

model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
decay = 0.999

# %% broken
average = copy.deepcopy(model).bfloat16()
with torch.no_grad():
    model.weight.fill_(2.0)  # what training does to it
    for _ in range(1000):
        average.weight.lerp_(model.weight.to(average.weight.dtype), 1 - decay)
print(f"average {average.weight.item():.3f}")

# %% fixed
average = copy.deepcopy(model).float()
with torch.no_grad():
    model.weight.fill_(2.0)  # what training does to it
    for _ in range(1000):
        average.weight.lerp_(model.weight.to(average.weight.dtype), 1 - decay)
print(f"average {average.weight.item():.3f}")

# %% invariant: after n steps, a share of decay to the power n is left of the distance
got, want = average.weight.item(), 2 - decay**1000
assert abs(got - want) < 1e-3, f"average {got:.3f} instead of {want:.3f}"
