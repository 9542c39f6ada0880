"""Answers to exercise 5.1 that the check must take or refuse."""


# %% right: one all_reduce for all, in the widest dtype, as one flat vector
def ex5_1(model):
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    flat = torch.cat([grad.flatten().double() for grad in grads])
    dist.all_reduce(flat, dist.ReduceOp.AVG)
    parts = flat.split([weight.numel() for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.grad = part.view_as(weight).to(weight.dtype)


# %% wrong: forgets to divide
# - weight.grad /= dist.get_world_size()
# %% wrong: divides twice
# ~ dist.all_reduce(weight.grad) => dist.all_reduce(weight.grad, dist.ReduceOp.AVG)
# %% wrong: reduces a copy
# ~ weight.grad) => weight.grad.clone())
# - weight.grad /= dist.get_world_size()
# %% wrong: forgets that a frozen parameter has no gradient
# = for weight in model.parameters():
# =     dist.all_reduce(weight.grad, dist.ReduceOp.AVG)
# %% wrong: gives a frozen parameter a gradient of zeros
# ~ weight.requires_grad => True
# %% wrong: skips what is None, and so calls all_reduce less often than the others
# ~ weight.grad = torch.zeros_like(weight) => continue
# %% wrong: averages the weights
# ~ weight.grad) => weight.data.add_(weight.grad), dist.ReduceOp.AVG)
# - weight.grad /= dist.get_world_size()
# %% wrong: reduces a tied weight once for each layer that has it
# ~ dist.all… => for _, other in model.named_parameters(remove_duplicate=False):
# +     dist.all_reduce(weight.grad) if other is weight else None
# %% wrong: only rank 0 takes part
# ~ ():  # a shared weight comes once => () if dist.get_rank() == 0 else []:
# %% wrong: divides by the number of ranks that have a gradient
#   if weight.requires_grad:
# +     count = torch.tensor(0.0 if weight.grad is None else 1.0)
# +     dist.all_reduce(count)
# ~ dist.get_world_size() => count.clamp(min=1).to(weight.dtype)
# %% wrong: takes the optimizer's step too
#   weight.grad /= dist.get_world_size()
# + weight.data -= 0.1 * weight.grad
# %% wrong: makes new parameters, which are no longer shared
#           weight.grad /= dist.get_world_size()
# + for module in model.modules():
# +     for name, weight in list(module.named_parameters(recurse=False)):
# +         new = nn.Parameter(weight.detach(), weight.requires_grad)
# +         new.grad = weight.grad
# +         setattr(module, name, new)
