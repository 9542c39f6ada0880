"""Answers to exercise 7.2 that the check must take or refuse."""


# %% right: the far ones first, and sends that it waits for at the end
def ex7_2(x, root):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (rank - root) % world_size
    low = place & -place if place else 1 << (world_size - 1).bit_length()
    if place:
        dist.irecv(x, (rank - low) % world_size).wait()
    hops = [1 << k for k in reversed(range(low.bit_length() - 1))]
    works = [
        dist.isend(x, dst=(rank + hop) % world_size)
        for hop in hops
        if place + hop < world_size
    ]
    for work in works:
        work.wait()


# %% wrong: the root sends to everybody
# = if dist.get_rank() == root:
# =     for rank in range(dist.get_world_size()):
# =         if rank != root:
# =             dist.send(x, rank)
# = else:
# =     dist.recv(x, root)
# %% wrong: passes it along a chain
# = rank, world_size = dist.get_rank(), dist.get_world_size()
# = if rank != root:
# =     dist.recv(x, (rank - 1) % world_size)
# = if (rank + 1) % world_size != root:
# =     dist.send(x, (rank + 1) % world_size)
# %% wrong: always from rank 0
# ~ (rank - root) % world_size => rank
# %% wrong: receives into another tensor
#   place, hop = (rank - root) % world_size, 1
# + x = x.clone()
#       hop *= 2
# + return x
# %% wrong: asks the group itself
# + import torch
# = opts = torch._C._distributed_c10d.BroadcastOptions()
# = opts.rootRank = root
# = dist.group.WORLD.broadcast([x], opts).wait()
