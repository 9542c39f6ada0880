"""all_reduce around a ring.

Ranks: 1, 2, 3, 4
Minutes: 30
Level: hard

Write `dist.all_reduce` for a sum yourself, as a ring does it.

`ex4_5(x)` is called on every rank with a tensor of shape `(n,)`, the same on all ranks.
After the call, every rank's `x` holds the sum over the W ranks. Write into `x` in
place; integers must stay integers.

- Rank r sends only to rank `(r + 1) % W`, with `isend`. It receives only from rank
  `(r - 1) % W`, with `recv` or `irecv`.
- Cut `x` into W chunks. There are 2 (W − 1) steps, and every rank sends one chunk in
  each.
- So a rank sends at most 2 (W − 1) ⌈n / W⌉ numbers. That is about 2 n, however many
  ranks there are.

n need not be a multiple of W, and may be smaller than W.

Hint 1: Take 3 ranks and 3 chunks, and draw who holds which sum after each step. After
the first half of the steps, which chunk is complete on rank r?
Hint 2: In the first W − 1 steps a rank adds what it receives, and then sends on the
chunk that it has just added to. After them, each rank has one complete chunk. In W − 1
more steps these chunks go around, and are copied, not added.
Hint 3: `chunks = x.tensor_split(W)`. In step s, send `chunks[(rank - s) % W]`, and
receive what belongs to `chunks[(rank - s - 1) % W]`. This holds in both halves.
"""


# %% solution
def ex4_5(x):
    """Replace x (n,) by the sum over all ranks, in place, around a ring."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(world_size)  # views: to write into them is to write into x
    for step in range(2 * (world_size - 1)):
        mine = chunks[(rank - step) % world_size]
        into = chunks[(rank - step - 1) % world_size]
        received = torch.empty_like(into)
        sending = dist.isend(mine, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        into.copy_(into + received if step < world_size - 1 else received)


# %% check
CASES = {
    "a multiple of the world size": (12, torch.float32),
    "a number that W does not divide": (7, torch.float64),
    "fewer numbers than ranks": (2, torch.float32),
    "integers": (9, torch.int64),
    "ten thousand numbers": (10_000, torch.float32),
}


def check(answer, case):
    barrier, sent = dist.barrier, []

    def count(tensor, dst=None, *args, **kwargs):
        if dst != (right := (rank + 1) % world_size):
            raise Wrong(f"""rank {rank} sends to rank {dst}; in the ring it sends to
                {right}.""")
        sent.append(tensor.numel())

    only("isend recv irecv", "only isend, recv and irecv may be used.")
    spy(dist, "isend", count)
    for name, (num, dtype) in case.each(CASES):
        each = [(torch.arange(num) % 5 + 10**r).to(dtype) for r in range(world_size)]
        x, own, total = each[rank].clone(), each[rank], sum(each)
        even = num // world_size * world_size
        sent.clear()
        returned = answer(x)
        barrier()
        fault = "The sum was returned in another tensor."
        mistakes = in_place(returned, own, total, fault) | {
            f"The last {num - even} of {num} numbers were left out.":
                torch.cat([total[:even], own[even:]]),
            "This is the mean, not the sum.": (total / world_size).to(dtype),
        }  # fmt: skip
        if world_size > 1 and x.shape == total.shape:
            pairs = zip(x.tensor_split(world_size), total.tensor_split(world_size))
            right = [i for i, (a, b) in enumerate(pairs) if torch.equal(a, b)]
            mistakes[f"Only the chunks {right} of {world_size} are complete."] = x
        compare(f"rank {rank}'s x", x, total, mistakes)
        steps = 2 * (world_size - 1)
        most = steps * -(-num // world_size)
        if sum(sent) > most:
            raise Wrong(f"""the sum is right, but rank {rank} sent {sum(sent)} numbers
                in {len(sent)} messages; a ring needs {most}, in {steps}.""")
        if len(sent) > steps:
            raise Wrong(f"rank {rank} sent {len(sent)} messages; a ring needs {steps}.")
