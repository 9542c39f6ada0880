"""Answers to exercise 5.2 that the check must take or refuse."""

# %% right: blocks in place of strides, Python's generator, repeats from the end
# ~ dice =… => order = list(range(num_samples))
# ~ order… => random.Random(f"{seed}, {epoch}").shuffle(order)
# ~ total… => share = -(-num_samples // world_size)
# ~ order… => while len(order) < share * world_size:
# +     order.append(order[-num_samples])
# ~ [rank::world_size] => [rank * share :][:share]
# %% right: torch's own
# + from torch.utils.data import DistributedSampler
# = sampler = DistributedSampler(range(num_samples), seed=seed)
# = sampler.set_epoch(epoch)
# = return list(sampler)
# %% wrong: forgets the epoch
# - sampler.set_epoch(epoch)
# %% wrong: shuffles with another seed on each rank
# ~ (seed + epoch)  # the same on all ranks => (seed + epoch + 1000 * rank)
# %% wrong: does not make the shares equal
# - order = list(itertools.islice(itertools.cycle(order), total))
# %% wrong: drops the tail
# ~ -(-num_samples // world_size) => num_samples // world_size
# %% wrong: fills up from the front once, which is too short for few samples
# ~ = list(… => += order[: total - num_samples]
# %% wrong: seeds the global generator
# ~ torch.Generator().manual => torch.manual
# %% wrong: shares out first, then shuffles the share
# ~ torch.randperm(num_samples, generator=dice).tolist() => range(num_samples)
# ~ return => order =
# + return [order[i] for i in torch.randperm(len(order), generator=dice)]
# %% wrong: does not shuffle
# ~ torch.randperm… => [(i + epoch + seed) % num_samples for i in range(num_samples)]
# %% wrong: seeds Python's global generator
# ~ dice =… => random.seed(seed + epoch)
# ~ torch.randperm… => random.sample(range(num_samples), num_samples)
# %% wrong: fills up with indices that don't exist
#   total = -(-num_samples // world_size) * world_size  # rounded up
# ~ list(… => torch.randperm(total, generator=dice)
# %% wrong: every rank draws everything
# ~ rank::world_size => :num_samples
# %% wrong: rank 0 shuffles for all, in a way that nobody can repeat
#   dice = torch.Generator().manual_seed(seed + epoch)  # the same on all ranks
# + dice.seed()
# ~ .tolist() =>
# + dist.broadcast(order, src=0)
# %% wrong: forgets the seed
# ~ (seed + epoch)  # the same on all ranks => (epoch)
# %% wrong: fills up with one sample again and again
# ~ = list(… => += [order[0]] * (total - num_samples)
