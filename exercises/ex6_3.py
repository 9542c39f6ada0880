"""One embedding on two stages.

Ranks: 1, 2, 4
Minutes: 15

A language model often uses one matrix twice: as the embedding, its first layer, and as
the head, its last. In a pipeline of W ranks, the embedding is on rank 0 and the head on
rank W − 1. So each of these two ranks has a copy of the matrix, and a backward pass
gives each copy only the gradient of its own layer. If each rank stepped with its own
gradient, the copies would drift apart.

After backward, all ranks call `ex6_3(weight)`. On the first and the last rank, `weight`
is the rank's copy; on the others it is None. Give both copies the gradient that one
process would compute if it used a single matrix in both places. The two gradients must
agree bit for bit, so that the same optimizer step keeps the copies equal. With W = 1
there is only one parameter, and autograd has already done everything.

Hint 1: A weight is used twice in one process. What does autograd do with the two
gradients, take their mean?
Hint 2: It adds them. So the two ranks exchange gradients, and each adds what it
receives. The ranks in between hold no copy, so the exchange must work without them.
Hint 3: On both: `sending = dist.isend(weight.grad.contiguous(), other)`,
`dist.recv(theirs, other)`, `sending.wait()`, `weight.grad += theirs`.
"""


# %% solution
def ex6_3(weight):
    """Add up the gradients of the first and the last rank's copies, on both."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if weight is not None and last > 0:
        mine = weight.grad.contiguous()
        theirs = torch.empty_like(mine)
        sending = dist.isend(mine, last - rank)  # 0 to last, last to 0
        dist.recv(theirs, last - rank)
        sending.wait()
        weight.grad = mine + theirs


# %% check
def check(answer, case):
    groups, ends = [], {0, world_size - 1}

    def count(*args, use_local_synchronization=False, **kwargs):
        if not use_local_synchronization:  # with it, only members call
            groups.append(0)

    spy(dist, "new_group", count)
    for name in "float32", "float64", "a gradient with transposed memory":
        case(name)
        dtype = torch.float64 if name == "float64" else torch.float32
        matrix = torch.randn(7, 3, generator=dice(0)).to(dtype)
        weight = nn.Parameter(matrix.clone()) if rank in ends else None
        parts = {e: torch.randn(3, 7, generator=dice(e + 1)).T.to(dtype) for e in ends}
        if "transposed" not in name:
            parts = {end: part.contiguous() for end, part in parts.items()}
        if weight is not None:
            weight.grad = parts[rank].clone()
        groups.clear()
        answer(weight)
        mine = weight is not None and weight.grad
        every, made = zip(*everyone((mine, len(groups))))
        if len(set(made)) > 1:
            raise Wrong(f"""ranks 0 to {world_size - 1} called new_group {list(made)}
                times: every rank must call it, also one that is not in the group. Else
                the ranks count their groups differently, and the next one of all goes
                wrong.""")
        if weight is None:
            continue
        compare("the weight itself", weight.detach(), matrix, {})
        total, other = sum(parts.values()), parts[world_size - 1 - rank]
        compare(f"the gradient on rank {rank}", weight.grad, total, {
            "One matrix is used twice: gradients add up, and no mean is taken.":
                total / 2,
            "It was divided by the world size.": total / world_size,
            "This is still the gradient of its own use.": parts[rank],
            "This is the other rank's; its own is lost.": other,
            "With one rank there is nothing to add.": 2 * total,
            "The own gradient was added once more.": total + parts[rank],
        })  # fmt: skip
        if 0 < (far := (every[0] - every[-1]).abs().max().item()) < 1e-5:
            raise Wrong(f"""the copies would drift apart: their gradients differ by
                {far}.""")
