"""Broadcast along a tree.

Ranks: 1, 2, 3, 4
Minutes: 20

Write `dist.broadcast` yourself: fill every rank's `x`, in place, with the `x` of rank
`root`. `x` has the same shape on all ranks. Use only `isend`, `irecv`, `send` and
`recv`. Let a message take one step. A rank can send only one message per step, and no
rank may receive twice. The last rank must have its copy after ⌈log₂ W⌉ steps.

Hint 1: After one step two ranks have the tensor. What can they do in the second step?
Hint 2: Number the ranks from the root: `place = (rank - root) % W`. In the step with
`hop` 1, 2, 4, …, the places below `hop` have the tensor, and send it `hop` places on.
Hint 3: `if place < hop` and `place + hop < W`, send to `(rank + hop) % W`; if
`hop <= place < 2 * hop`, receive from `(rank - hop) % W`.
"""


# %% solution
def ex7_2(x, root):
    """Replace x by rank root's x, in place, along a tree."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    place, hop = (rank - root) % world_size, 1
    while hop < world_size:  # the places below hop have it
        if place < hop and place + hop < world_size:
            dist.send(x, (rank + hop) % world_size)
        elif hop <= place < 2 * hop:
            dist.recv(x, (rank - hop) % world_size)
        hop *= 2


# %% check
def arrivals(messages, root):
    """Return the step in which each rank has its copy, by whom each sends to."""
    steps, left = {root: 0}, [root]
    for source in left:
        for number, target in enumerate(messages[source], 1):
            if target in steps:
                raise Wrong(f"rank {target} has the tensor, and gets it again.")
            steps[target] = steps[source] + number
            left.append(target)
    return steps


def check(answer, case):
    sent = []

    def note(tensor, dst=None, *args, **kwargs):
        sent.append(dst)

    only("isend irecv send recv", "only isend, irecv, send and recv may be used.")
    spy(dist, "send isend", note)
    for root in range(world_size):
        case(f"from rank {root}")
        mine = torch.arange(12.0).view(3, 4) + 100 * rank
        wanted = torch.arange(12.0).view(3, 4) + 100 * root
        x = mine.clone()
        sent.clear()
        returned = answer(x, root)
        fault = "The copy was returned in another tensor."
        mistakes = in_place(returned, mine, wanted, fault)
        mistakes["This is what rank 0 held, not the root."] = wanted - 100 * root
        compare(f"rank {rank}'s x", x, wanted, mistakes)
        messages = everyone(sent)
        last = max(arrivals(messages, root).values())
        if last > (most := (world_size - 1).bit_length()):
            raise Wrong(f"""the copies are right, but the last rank has its own after
                {last} steps; a tree needs {most}. By rank they send
                {[len(m) for m in messages]} messages.""")
