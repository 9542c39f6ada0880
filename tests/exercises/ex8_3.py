"""Answers to exercise 8.3 that the check must take or refuse."""


# %% right: its own rows keep their graph, and a hook adds up the gradients
def ex8_3(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    given = x.detach().contiguous()
    parts = [torch.empty_like(given) for _ in range(world_size)]
    dist.all_gather(parts, given)
    parts[rank] = x

    def add_up(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    rows = torch.cat(parts)
    rows.register_hook(add_up)
    return rows


# %% wrong: only its own rows keep their graph
# - rows.register_hook(add_up)
# %% wrong: no graph at all
# ~ x.contiguous => x.detach().contiguous
# %% wrong: takes the mean of the gradients, as DDP does
# ~ return mine => return mine / dist.get_world_size()
# %% wrong: multiplies its own part by the world size
# - dist.reduce_scatter(mine, parts)
# ~ mine => parts[dist.get_rank()] * dist.get_world_size()
# %% wrong: adds up what each rank's loss says of its own rows
# ~ [rank] = x => [rank] = mine = x.clone()
# ~ rows. => mine.
# %% wrong: adds up its own loss's gradients of all rows
# - dist.reduce_scatter(mine, parts)
# ~ mine => sum(parts)
