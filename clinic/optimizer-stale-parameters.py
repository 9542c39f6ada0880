r"""The loss does not move: the optimizer holds old parameters.

class: model parallel
symptom: silent
runs on: one process
chapter: ch6_model_parallel
signature: the model did not change in a step
guard: does not hold weight and 1 more

You see: no error; the loss stays where it is.

Cause: an optimizer keeps the Parameter objects that it was given. `to_empty` (from the
meta device), `load_state_dict(assign=True)`, a replaced layer and FSDP2's `fully_shard`
put new objects into the model. The old ones get no gradients, so `step()` skips them.
`.to("cuda")` and `.to(dtype)` do no such thing, contrary to an often quoted rule: they
keep the objects and change what is inside. Only an optimizer that already has state
(Adam after a step) is then left with state on the old device.

Cure: build the optimizer last, when nothing will move or replace the model's parameters
any more.

Next time: `optimizer.param_groups[0]["params"][0] is next(model.parameters())` must be
True; and after the first step some parameter must have changed.

Links: https://github.com/pytorch/pytorch/issues/7844 (the rule in the documentation was wrong)
https://github.com/pytorch/pytorch/issues/69214 (the same question, years later)
"""

# %% given
import torch
from torch import nn

with torch.device("meta"):
    model = nn.Linear(2, 1)

# %% broken
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = model.to_empty(device="cpu")
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("weights after a step:", model.weight.tolist())

# %% fixed
model = model.to_empty(device="cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
nn.init.ones_(model.weight)
nn.init.zeros_(model.bias)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("weights after a step:", model.weight.tolist())

# %% invariant: a step changes the model
changed = model.weight.tolist() != [[1.0, 1.0]]
assert changed, "the model did not change in a step"

# %% guarded
from allranks.guard import Guard

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = model.to_empty(device="cpu")
watch = Guard(model, optimizer)
