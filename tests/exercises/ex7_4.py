"""Answers to exercise 7.4 that the check must take or refuse."""


# %% right: reduces each chunk to the rank that adds it up, and no more
def ex7_4(x, nodes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = world_size // nodes
    across = [range(k, world_size, size) for k in range(size)]
    inside = [range(k * size, (k + 1) * size) for k in range(nodes)]
    made = [(list(ranks), dist.new_group(ranks)) for ranks in (*across, *inside)]
    (_, others), (members, group) = [one for one in made if rank in one[0]]
    parts = [part.clone() for part in x.tensor_split(size)]
    for owner, part in zip(members, parts):
        dist.reduce(part, owner, group=group)
    dist.all_reduce(parts[rank % size], group=others)
    for owner, part, into in zip(members, parts, x.tensor_split(size)):
        if size > 1:
            dist.broadcast(part, owner, group=group)
        into.copy_(part)


# %% wrong: the whole tensor crosses the network
# ~ chunks[place] => x
# %% wrong: nobody shares the chunks in the end
# ~ dist.broadcast(chunk, src=node * size + source, group=inside[node]) => pass
# %% wrong: src is the rank in the group
#   for source, chunk in enumerate(chunks):
# -     if size > 1:
# -         dist.broadcast(chunk, src=node * size + source, group=inside[node])
# +     dist.broadcast(chunk, src=source, group=inside[node])
# %% wrong: one all_reduce of all ranks
# = dist.all_reduce(x)
# %% wrong: adds up inside the nodes only
# - dist.all_reduce(chunks[place], group=across[place])
# %% wrong: asks the group itself
# = dist.group.WORLD.allreduce([x]).wait()
