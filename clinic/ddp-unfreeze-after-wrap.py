r"""Gradients of a layer unfrozen after DDP wrapping aren't averaged.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: gradient of 0\.weight \S+ and \S+ instead of
guard: gradient module\.0\.weight is not the same on all ranks

You see: nothing. Fine-tuning goes on after the layer is unfrozen, and its weights drift
apart from rank to rank.

Cause: DDP looks at `requires_grad` once, when it is built. A parameter that is frozen
at that moment gets no hook. Once it is unfrozen, autograd computes its gradient, but
each rank keeps its own.

Cure: unfreeze, then wrap the bare model again. Every rank must do so at the same step.
Or let the layer be trainable from the start, with a learning rate of zero.

Next time: print `requires_grad` of all parameters right before the line that wraps.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/20340 (backbone that is unfrozen during training, under DDP)
https://github.com/huggingface/transformers/issues/416 (never change the parameters after wrapping)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[2.0], [4.0]]) if rank == 0 else torch.tensor([[6.0], [2.0]])
model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
for parameter in model.parameters():
    nn.init.ones_(parameter)
model[0].requires_grad_(False)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ddp(x).square().mean().backward()
optimizer.step()

# %% broken
model[0].requires_grad_(True)
optimizer.zero_grad()
ddp(x).square().mean().backward()
optimizer.step()
print("trained:", ", ".join(dict(model.named_parameters())))

# %% fixed
model[0].requires_grad_(True)
ddp = DistributedDataParallel(model)
optimizer.zero_grad()
ddp(x).square().mean().backward()
optimizer.step()
print("trained:", ", ".join(dict(model.named_parameters())))

# %% invariant: every gradient is the mean of the ranks' own
before = {name: p.detach() + 0.01 * p.grad for name, p in model.named_parameters()}
alone = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
alone.load_state_dict(before)
union = [torch.empty_like(x) for _ in range(world_size)]
dist.all_gather(union, x)
alone(torch.cat(union)).square().mean().backward()
for (name, p), other in zip(model.named_parameters(), alone.parameters(), strict=True):
    grads = [torch.empty_like(p) for _ in range(world_size)]
    dist.all_gather(grads, p.grad)
    words = " and ".join(f"{grad.item():.2f}" for grad in grads)
    close = all(torch.allclose(grad, other.grad, atol=1e-4) for grad in grads)
    what = f"gradient of {name} {words}"
    assert close, f"{what} instead of {other.grad.item():.2f}"

# %% guarded
from allranks.guard import Guard

model[0].requires_grad_(True)
watch = Guard(ddp, optimizer)
optimizer.zero_grad()
ddp(x).square().mean().backward()
watch.step()
optimizer.step()
