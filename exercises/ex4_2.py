"""Broadcast, made of send and recv.

Chapter: 4
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
import torch
import torch.distributed as dist


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
from allranks.exercises.oracle import compare
from allranks.exercises.patches import communications

MAKERS = {
    "three numbers": lambda: torch.zeros(3),
    "integers": lambda: torch.zeros(2, 2, dtype=torch.int64),
    "one number without dimensions": lambda: torch.zeros(()),
    "a transposed matrix": lambda: torch.zeros(3, 2).t(),
    "every second column of a matrix": lambda: torch.zeros(2, 6)[:, ::2],
}


def forbid(name):
    def refuse(*args, **kwargs):
        raise Wrong(f"it calls {name}; only send, recv, isend and irecv may be used.")

    patch(dist, name, refuse)


GIVEN = []  # the tensor of the case


def matching(receive):
    """Check the size first: gloo ends the process if it does not fit."""

    def guarded(buffer, *args, **kwargs):
        if buffer.nbytes != GIVEN[-1].nbytes:
            raise Wrong(
                f"rank {rank} receives into {buffer.nbytes} bytes ({buffer.dtype}) "
                f"what has {GIVEN[-1].nbytes} ({GIVEN[-1].dtype}): make room in x's "
                "dtype."
            )
        return receive(buffer, *args, **kwargs)

    return guarded


def check(answer, case):
    for name in communications(allowed="send recv isend irecv"):
        forbid(name)
    for name in "recv", "irecv":
        patch(dist, name, matching(getattr(dist, name)))
    for name, make in MAKERS.items():
        case(name)
        for src in sorted({0, world_size - 1, world_size // 2}):
            x, brought = make(), []
            for other in range(world_size):
                numbers = torch.arange(x.numel()) + 100 * other + 1
                brought.append(numbers.view(x.shape).to(x.dtype))
            x.copy_(brought[rank])
            GIVEN.append(x)
            returned = answer(x, src)
            mistakes = {"It holds what it held before.": brought[rank]}
            if isinstance(returned, torch.Tensor) and rank != src:
                right = torch.equal(returned, brought[src])
                fault = "Right values are returned, but in another tensor than x."
                mistakes = {fault: brought[rank]} if right else mistakes
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
# = data = x.contiguous().clone()
# = if dist.get_rank() == 0:
# =     for other in range(1, dist.get_world_size()):
# =         dist.send(data, other)
# = else:
# =     dist.recv(data, 0)
# = x.copy_(data)
# %% wrong: receives into a copy, and returns that
# = x = x.contiguous().clone()
# = if dist.get_rank() == src:
# =     for other in range(dist.get_world_size()):
# =         if other != src:
# =             dist.send(x, other)
# = else:
# =     dist.recv(x, src)
# = return x
# %% wrong: all send first, and nobody listens
# = data = x.contiguous().clone()
# = for other in range(dist.get_world_size()):
# =     if other != dist.get_rank():
# =         dist.send(data, other)
# = if dist.get_rank() != src:
# =     dist.recv(data, src)
# = x.copy_(data)
# %% wrong: sends to itself too
# = data = x.contiguous().clone()
# = if dist.get_rank() == src:
# =     for other in range(dist.get_world_size()):
# =         dist.send(data, other)
# = else:
# =     dist.recv(data, src)
# = x.copy_(data)
# %% wrong: sends and receives views as they are
# = if dist.get_rank() == src:
# =     for other in range(dist.get_world_size()):
# =         if other != src:
# =             dist.send(x, other)
# = else:
# =     dist.recv(x, src)
# %% wrong: receives into a contiguous copy of a view, which is not the view
# - buffer = torch.empty(x.shape, dtype=x.dtype)
# - dist.recv(buffer, src)
# - x.copy_(buffer)
# + dist.recv(x.contiguous(), src)
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
# - buffer = torch.empty(x.shape, dtype=x.dtype)
# + buffer = torch.empty(x.shape)
