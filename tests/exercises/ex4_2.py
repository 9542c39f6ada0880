"""Answers to exercise 4.2 that the check must take or refuse."""


# %% right: a tree, in which each rank that has x sends it on: log2(W) rounds
def ex4_2(x, src):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, reach = (rank - src) % world_size, 1  # src stands at place 0
    data = x.contiguous().clone()
    while reach < world_size:
        if place < reach and place + reach < world_size:
            dist.send(data, (rank + reach) % world_size)
        elif reach <= place < 2 * reach:
            dist.recv(data, (rank - reach) % world_size)
        reach *= 2
    x.copy_(data)


# %% wrong: always sends from rank 0
# ~ (rank - src) % world_size => rank
# %% wrong: receives into a copy, and returns that
# ~ x.copy_(buffer) => return buffer
# %% wrong: all send first, and nobody listens
#   data = x.contiguous().clone()
# + for other in range(world_size):
# +     if other != rank:
# +         dist.send(data, other)
# ~ world_size => 0
# %% wrong: sends to itself too
# ~ other != src => True
# %% wrong: sends and receives views as they are
# ~ x.contiguous() => x
# ~ torch.empty(x.shape, dtype=x.dtype) => x
# %% wrong: receives into a contiguous copy of a view, which is not the view
# - dist.recv(buffer, src)
# ~ x.copy_(buffer) => dist.recv(x.contiguous(), src)
# %% wrong: calls the collective
# = data = x.contiguous()
# = dist.broadcast(data, src)
# = x.copy_(data)
# %% wrong: gathers all, by another collective
# = parts = torch.empty(dist.get_world_size(), *x.shape, dtype=x.dtype)
# = dist.all_gather_into_tensor(parts, x.contiguous())
# = x.copy_(parts[src])
# %% wrong: hands it out as objects, by a function that was imported by name
# + from torch.distributed import get_rank, get_world_size, scatter_object_list
# = box = [None]
# = parts = [x] * get_world_size() if get_rank() == src else None
# = scatter_object_list(box, parts, src=src)
# = x.copy_(box[0])
# %% wrong: receives integers into a buffer of float32
# ~ shape, dtype=x.dtype => shape
