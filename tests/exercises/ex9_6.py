"""Answers to exercise 9.6 that the check must take or refuse."""


# %% right: one number since the training began, and blocks instead of cards
def ex9_6(num_samples, batch_size, seed, rank, world_size, state=None):
    read = state["read"] if state else 0
    epoch = read // num_samples
    order = list(range(num_samples))
    random.Random(f"{seed}, {epoch}").shuffle(order)
    while read < (epoch + 1) * num_samples:
        done = read % num_samples
        first = done + rank * batch_size
        mine = order[first : first + batch_size]
        read += min(world_size * batch_size, num_samples - done)
        yield mine, {"read": read}


# %% wrong: fills up the last step, as DistributedSampler does
#   order = torch.randperm(num_samples, generator=dice).tolist()
# + while len(order) % world_size:
# +     order += order[: world_size - len(order) % world_size]
# + num_samples = len(order)
# %% wrong: drops the last step if it is not full
#   order = torch.randperm(num_samples, generator=dice).tolist()
# + num_samples -= num_samples % (world_size * batch_size)
# %% wrong: counts steps, which mean something else on other ranks
#   epoch, start = state["epoch"], state["start"]
# + start *= world_size * batch_size
# ~ "start": start => "start": -(-start // (world_size * batch_size))
# %% wrong: counts this rank's samples
# - order = torch.randperm(num_samples, generator=dice).tolist()
# + order = torch.randperm(num_samples, generator=dice).tolist()[rank::world_size]
# + num_samples = -(-num_samples // world_size)
# - part = order[start : start + world_size * batch_size]
# - start += len(part)
# + part = order[start : start + batch_size]
# + start = min(start + batch_size, num_samples)
# ~ part[rank::world_size] => part
# %% wrong: begins the epoch anew
# ~ state["start"] => 0
# %% wrong: shuffles the rest anew, with another order than before
# ~ + epoch => + epoch + start
# %% wrong: the state is that before the step
# - start += len(part)
# - after = {"epoch": epoch, "start": start}
# + after = {"epoch": epoch, "start": start}
# + start += len(part)
# %% wrong: one dict, which it changes
# - after = {"epoch": epoch, "start": start}
# + after = state
# + after["start"] = start
# ~ after = {"epoch": epoch + 1, "start": 0} => after.update(epoch=epoch + 1, start=0)
# %% wrong: keeps the whole order in the state
# ~ "start": start => "order": order[start:]
# %% wrong: every epoch has the order of the first
# ~ seed * 2**20 + epoch => seed
