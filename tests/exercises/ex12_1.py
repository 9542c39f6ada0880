"""Answers to exercise 12.1 that the check must take or refuse."""


# %% right: lists of parts, as older versions of torch want them
def ex12_1(weights, gradient, momentum, lr):
    world_size = dist.get_world_size()
    full = torch.zeros(world_size * len(momentum), dtype=weights.dtype)
    full[: len(gradient)] = gradient
    mean = torch.empty_like(momentum)
    dist.reduce_scatter(mean, list(full.chunk(world_size)))
    momentum.copy_(0.9 * momentum + mean / world_size)
    steps = [torch.empty_like(momentum) for _ in range(world_size)]
    dist.all_gather(steps, lr * momentum)
    weights -= torch.cat(steps)[: len(weights)]


# %% wrong: the sum of the gradients
# - mean /= world_size
# %% wrong: its own gradient
# - mean /= world_size
# + mean.copy_(F.pad(gradient, padding).chunk(world_size)[rank])
# %% wrong: forgets the momentum
# ~ mul_(0.9) => zero_()
# %% wrong: moves along the gradient
# ~ lr * momentum => lr * mean
# %% wrong: moves uphill
# ~ [rank] - lr => [rank] + lr
# %% wrong: keeps its part to itself
# ~ all_gather_single(full, mine) => all_gather_single(full.clone(), mine)
# ~ weights.copy_(full[:num]) => start = rank * size
# + weights[start : start + size] = mine[: max(num - start, 0)]
# %% wrong: averages all gradients, as DDP does
# - dist.reduce_scatter_single(mean, F.pad(gradient, padding))
# + full = F.pad(gradient, padding)
# + dist.all_reduce(full)
# + mean.copy_(full.chunk(world_size)[rank])
# %% wrong: gathers all gradients
# - dist.reduce_scatter_single(mean, F.pad(gradient, padding))
# + full = gradient.new_empty(world_size, world_size * size)
# + dist.all_gather_single(full.view(-1), F.pad(gradient, padding))
# + mean.copy_(full.sum(0).chunk(world_size)[rank])
# %% wrong: writes the average into the gradient
# ~ mean /= => gradient /=
# %% wrong: forgets the padding
# ~ F.pad(gradient, padding) => gradient
# %% wrong: changes nothing
# - weights.copy_(full[:num])
