"""Broadcast, made of send and recv.

Ranks: 1, 2, 4
Minutes: 10

Write `dist.broadcast` yourself, with only `dist.send` and `dist.recv` (or `isend` and
`irecv`).

`ex4_2(x, src)` is called on every rank with a tensor `x` and the number of the rank
that sends. After the call, `x` holds on every rank what it held on rank `src`. Write
into `x` in place. On rank `src` it stays as it is.

`x` has the same shape and dtype on all ranks. It may be a view whose memory is not
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
