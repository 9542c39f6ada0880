"""Answers to exercise 4.5 that the check must take or refuse."""

# %% right: chunks by stride, and a receive that begins before the send
# ~ x.tensor_split(world_size) => [x[r::world_size] for r in range(world_size)]
# ~ sending… => receiving = dist.irecv(received, (rank - 1) % world_size)
# ~ dist.recv… => dist.isend(mine.clone(), (rank + 1) % world_size).wait()
# ~ sending => receiving
# %% wrong: passes the whole tensor around, W - 1 times
# ~ x.tensor_split(world_size) => [x.clone()] * world_size
# ~ 2 * (world_size - 1) => world_size - 1
# ~ into.copy_(into… => x.add_(into.copy_(received))
# %% wrong: the first half only
# ~ 2 * (world_size - 1) => world_size - 1
# %% wrong: n // W numbers to a chunk, and nobody takes the rest
# ~ x.tensor => x[: len(x) // world_size * world_size].tensor
# %% wrong: adds in the second half too
# ~ into.copy_… => into += received
# %% wrong: receives first, and so does everybody
# - sending = dist.isend(mine, (rank + 1) % world_size)
# ~ sending => dist.isend(mine, (rank + 1) % world_size)
# %% wrong: everybody sends to everybody
# = others = [r for r in range(dist.get_world_size()) if r != dist.get_rank()]
# = sends = [dist.isend(x.clone(), other) for other in others]
# = for other in others:
# =     dist.recv(received := torch.empty_like(x), other)
# =     x += received
# = [send.wait() for send in sends]
# %% wrong: calls all_reduce, by its own name
# + from torch.distributed import all_reduce
# = all_reduce(x)
# %% wrong: gathers everything, and adds it up
# = parts = x.new_empty(dist.get_world_size() * len(x))
# = dist.all_gather_into_tensor(parts, x)
# = x.copy_(parts.view(-1, len(x)).sum(dim=0))
# %% wrong: sums on rank 0, and hands the sum out as objects
# + from torch.distributed import get_rank, get_world_size, scatter_object_list
# = box = [None]
# = parts = [x] * get_world_size() if get_rank() == 0 else None
# = scatter_object_list(box, parts, src=0)
# = x.copy_(box[0])
# %% wrong: chunk() may give fewer than W chunks
# ~ tensor_split => chunk
# %% wrong: a message for each number
# ~ sending… => sends = [dist.isend(n, (rank + 1) % world_size) for n in mine.split(1)]
# ~ dist.recv… => [dist.recv(n, (rank - 1) % world_size) for n in received.split(1)]
# ~ sending.wait() => [send.wait() for send in sends]
