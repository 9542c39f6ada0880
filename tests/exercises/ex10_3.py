"""Answers to exercise 10.3 that the check must take or refuse."""


# %% right: each rank brings its share of what all hold
def ex10_3(sharded, replicated, max_norm):
    share = 1 / dist.get_world_size()
    found = [t.float().norm() ** 2 for t in sharded]
    found += [share * t.float().norm() ** 2 for t in replicated]
    total = torch.stack([torch.zeros(()), *found]).double().sum()
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    if norm > max_norm:
        torch._foreach_mul_([*sharded, *replicated], max_norm / norm)
    return norm


# %% wrong: the norm of what this rank holds
# - dist.all_reduce(total)
# %% wrong: what is replicated counts once per rank
# ~ 1 / dist.get_world_size() => 1
# %% wrong: squares in the gradients' own type
# ~ double().square => square
# ~ double().square => square
# %% wrong: adds up the ranks' norms
# ~ dist.all_reduce(total) => dist.all_reduce(total.sqrt_())
# - for gradient in replicated:
# -     total += gradient.double().square().sum()
# + total += sum(g.double().square().sum() for g in replicated) ** 0.5
# ~ total.sqrt() => total
# %% wrong: always scales to the threshold
# ~ min(1.0, max_norm / norm) => max_norm / norm
# %% wrong: a rank without shards does not call the collective
# ~ dist.all_reduce(total) => sharded and dist.all_reduce(total)
