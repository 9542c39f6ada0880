r"""No inf checks were recorded: the optimizer has no gradients.

class: AMP
symptom: crash
runs on: 2 ranks
chapter: ch10_precision
signature: rank 1: AssertionError: No inf checks were recorded for this optimizer

You see: `No inf checks were recorded for this optimizer` at `scaler.step(optimizer)`,
here in the second step, on the rank whose expert got no token. The other goes on, and
will wait for this one at the next collective. A fused optimizer passes `step` and fails
one line later, in `scaler.update()`: "No inf checks were recorded prior to update".

Cause: the scaler looks for inf and NaN in the gradients of the optimizer's parameters.
Here none of them has one, so there was nothing to check. Without a scaler the optimizer
would skip these parameters in silence.

Cure: let every rank run its part, since a batch of no rows gives gradients of zero. But
zero is not None: with momentum or weight decay the weights still move. Where they must
not, call `scaler.step` only if a parameter has a gradient, and `scaler.update` only
after a step.

Next time: count `p.grad is None` over `optimizer.param_groups`, just before the step.
If all of them are None, the parameters are frozen, were replaced after the optimizer
was made, have been reset by `zero_grad()` (which sets None since torch 2.0), or were
not used. "_scale is None" says that `scaler.scale` was not called even once.

Links: https://github.com/nerfstudio-project/nerfstudio/pull/1919 (a network that is skipped in some steps)
https://github.com/nerfstudio-project/nerfstudio/issues/1883 (it came with torch 2.0)
https://github.com/SheldonTsui/GOF_NeurIPS2021/issues/2 (every gradient of one optimizer is None)
"""

# %% given
from torch import nn

expert = nn.Linear(1, 1)  # this rank's own: DDP does not reduce it
optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
tokens = torch.ones(4, 1)
routes = [0, 1, 0, 1], [0, 0, 0, 0]  # which rank each token goes to

# %% broken
for owner in routes:
    optimizer.zero_grad()
    mine = tokens[torch.tensor(owner) == rank]
    if len(mine):
        scaler.scale(expert(mine).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print("tokens:", len(mine), "gradient:", expert.weight.grad.item())

# %% fixed
for owner in routes:
    optimizer.zero_grad()
    mine = tokens[torch.tensor(owner) == rank]
    scaler.scale(expert(mine).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    print("tokens:", len(mine), "gradient:", expert.weight.grad.item())

# %% signs
# No inf checks were recorded for this optimizer
# No inf checks were recorded prior to update
# maybe: Attempted (?:step|unscale_?) but _scale is None
