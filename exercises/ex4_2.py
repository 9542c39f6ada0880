"""Broadcast, made of send and recv.

Ranks: 1, 2, 4
Minutes: 10

Write `dist.broadcast` yourself, with only `dist.send` and `dist.recv` (or `isend` and
`irecv`). After the call, `x` holds on every rank what rank `src` brought. As with
the original, this happens in place, and rank `src` keeps what it has.

All ranks' tensors have the same shape and dtype. They may be views whose memory is not
contiguous, which `send` and `recv` refuse.

Hint 1: How many sends does each rank make, and how many receives?
Hint 2: Rank `src` sends to each of the others, and each of the others receives once. If
`x` is not contiguous, send a contiguous copy, and receive into a buffer.
Hint 3: On the others: `buffer = torch.empty(x.shape, dtype=x.dtype)`,
`dist.recv(buffer, src)`, `x.copy_(buffer)`.
"""


# %% solution
def ex4_2(x, src):
    """Copy rank src's x into all ranks' x, in place, by send and recv."""
    if dist.get_rank() == src:
        for other in range(dist.get_world_size()):
            if other != src:
                dist.send(x.contiguous(), other)
    else:
        buffer = torch.empty(x.shape, dtype=x.dtype)
        dist.recv(buffer, src)
        x.copy_(buffer)


# %% check
MAKERS = {
    "three numbers": lambda: torch.zeros(3),
    "integers": lambda: torch.zeros(2, 2, dtype=torch.int64),
    "one number without dimensions": lambda: torch.zeros(()),
    "a transposed matrix": lambda: torch.zeros(3, 2).t(),
    "every second column of a matrix": lambda: torch.zeros(2, 6)[:, ::2],
}
GIVEN = []  # the tensor of the case


def fits(buffer, *args, **kwargs):
    """Check the size first: gloo ends the process if it does not fit."""
    if buffer.nbytes != GIVEN[-1].nbytes:
        raise Wrong(f"""rank {rank} receives into {buffer.nbytes} bytes ({buffer.dtype})
            what has {GIVEN[-1].nbytes} ({GIVEN[-1].dtype}): make room in x's dtype.""")


def check(answer, case):
    only("send recv isend irecv", "only send, recv, isend and irecv may be used.")
    spy(dist, "recv irecv", fits)
    for name, make in case.each(MAKERS):
        for src in sorted({0, world_size - 1, world_size // 2}):
            x, numbers = make(), torch.arange(make().numel()) + 1
            brought = [numbers + 100 * r for r in range(world_size)]
            brought = [part.view(x.shape).to(x.dtype) for part in brought]
            x.copy_(brought[rank])
            GIVEN.append(x)
            fault = "Right values are returned, but in another tensor than x."
            mistakes = in_place(answer(x, src), brought[rank], brought[src], fault)
            for other in range(world_size):
                mistakes[f"This is what rank {other} brought."] = brought[other]
            compare(f"from rank {src}, rank {rank}'s x", x, brought[src], mistakes)


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
