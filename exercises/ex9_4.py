"""Streams of unequal length.

Ranks: 1, 2, 4
Minutes: 15

Each rank reads a stream: an iterable of tensors that can be read only once, has no
length and may be empty. `step(batch)` trains on a batch. It calls collectives, so all
ranks must call `step` the same number of times. A rank that has nothing left calls
`step(None)`, which takes part in the collectives with zeros.

Call `step` for every batch of every rank, once and in order. In each step, at least one
rank must have a batch. A stream may be long and batches are large, so a rank may hold
at most one batch that it has not trained on yet.

Hint 1: When may a rank stop? Not when its own stream has ended.
Hint 2: Before each step all ranks tell one another whether they have a batch. To know
that, a rank has to take its next batch first.
Hint 3: `batch = next(stream, None)`, and an all_reduce of 0 or 1 with
`dist.ReduceOp.MAX`. If the result is 0, all return together.
"""


# %% solution
def ex9_4(stream, step):
    """Call step(batch), or step(None), until no rank has a batch left."""
    stream = iter(stream)
    while True:
        batch = next(stream, None)
        more = torch.tensor(0 if batch is None else 1)
        dist.all_reduce(more, dist.ReduceOp.MAX)
        if not more:
            return
        step(batch)


# %% check
CASES = {  # the number of batches on each rank
    "equal streams": [3, 3, 3, 3],
    "one more on rank 0": [3, 2, 2, 2],
    "one more on the last rank": [2, 2, 2, 3],
    "all different": [1, 4, 2, 3],
    "an empty stream": [3, 0, 2, 1],
    "rank 0 has nothing": [0, 2, 1, 1],
    "nobody has anything": [0, 0, 0, 0],
}


class Stream:
    """An iterable that can be read once, and knows how much was read."""

    def __init__(self, num):
        self.num, self.read, self.begun = num, 0, False

    def __iter__(self):
        if self.begun:
            raise Wrong("it begins the stream a second time; it can be read once.")
        self.begun = True
        return self

    def __next__(self):
        if self.read == self.num:
            raise StopIteration
        self.read += 1
        return torch.full((2, 2), float(self.read - 1))


def check(answer, case):
    group = dist.new_group()
    for name, numbers in case.each(CASES):
        stream, steps = Stream(numbers[rank]), []

        def step(batch):
            steps.append(None if batch is None else int(batch[0, 0]))
            trained = [one for one in steps if one is not None]
            if stream.read > len(trained) + 1:
                raise Wrong(f"""rank {rank} has read {stream.read} batches before its
                    step number {len(steps)}; one that waits is enough.""")
            dist.all_reduce(torch.ones(1), group=group)

        answer(stream, step)
        judge(everyone(steps), numbers)


def judge(every, numbers):
    """Is each batch trained once, and in as few steps as possible?"""
    for r, steps in enumerate(every):
        trained = [one for one in steps if one is not None]
        if twice := [one for one in trained if trained.count(one) > 1]:
            raise Wrong(f"""rank {r} trains {trained.count(twice[0])} times on its batch
                {twice[0]}.""")
        if trained != sorted(trained):
            raise Wrong(f"rank {r} trains on its batches in the order {trained}.")
        if trained != list(range(numbers[r])):
            raise Wrong(f"""rank {r} trains on {len(trained)} of its {numbers[r]}
                batches; the ranks have {numbers[:world_size]} and make
                {[len(s) for s in every]} steps.""")
    if idle := sum(not any(one is not None for one in row) for row in zip(*every)):
        raise Wrong(f"""all batches are trained on, but nobody has one in {idle} of
            {len(every[0])} steps.""")
