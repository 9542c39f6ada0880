"""Answers to exercise 10.2 that the check must take or refuse."""


# %% right: gathers what each rank says, as an object
def ex10_2(optimizer, state, interval):
    all_parameters = [p for g in optimizer.param_groups for p in g["params"]]
    gradients = [p.grad for p in all_parameters if p.grad is not None]
    for gradient in gradients:
        gradient.mul_(1 / state["scale"])
    mine = all(torch.isfinite(g).all().item() for g in gradients)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    if all(every):
        optimizer.step()
        state["good"] += 1
    else:
        state.update(scale=state["scale"] * 0.5, good=0)
    if state["good"] >= interval:
        state.update(scale=state["scale"] * 2.0, good=0)
    return all(every)


# %% wrong: each rank decides for itself
# - dist.all_reduce(bad, op=dist.ReduceOp.MAX)
# %% wrong: only who has gradients asks the others
# - dist.all_reduce(bad, op=dist.ReduceOp.MAX)
# + parameters = [p for group in optimizer.param_groups for p in group["params"]]
# + if any(p.grad is not None for p in parameters):
# +     dist.all_reduce(bad, op=dist.ReduceOp.MAX)
# %% wrong: looks for inf in the sum of all gradients
# - parameter.grad /= state["scale"]
# - bad += not parameter.grad.isfinite().all()
# + bad += parameter.grad.abs().sum()
# + parameter.grad /= state["scale"]
# - dist.all_reduce(bad, op=dist.ReduceOp.MAX)
# - if bad:
# + dist.all_reduce(bad)
# + if not bad.isfinite():
# %% wrong: a bad step does not end the row of good ones
# ~ ["scale"], state["good"] = state["scale"] / 2, 0 => ["scale"] /= 2
# %% wrong: steps with gradients that are still scaled
# - parameter.grad /= state["scale"]
# %% wrong: compares the largest gradient with inf
# ~ += not parameter.grad.isfinite().all() => = torch.maximum(bad, parameter.grad.max())
# ~ if bad => if bad == float("inf")
