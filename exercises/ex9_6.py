"""Resume in the middle of an epoch.

Ranks: 1
Minutes: 35
Level: hard

Write a generator that goes through the rest of one epoch and then stops. For each step
it yields `(batch, state)`. `batch` is the list of indices that this rank reads, at most
`batch_size` of them. `state` is a dict that a checkpoint after this step would save.

At the very beginning, your function gets None as `state`. After a crash, it gets what
*any* rank yielded last, and the new job may have a different number of ranks and a
different batch size. The state after the last step of an epoch stands for the beginning
of the next epoch. These rules hold, however often the job is stopped:

- In each epoch, every sample is read exactly once, by one rank. All ranks make the same
  number of steps, and in each step at least one rank has a sample. So the last batches
  may be shorter, or even empty.
- The order is random. It depends on the seed and the epoch, and on nothing that changes
  when the job is restarted. Leave the global random generators alone.
- A state has at most 200 characters as JSON. A loader may ask for batches that the
  model has not seen yet, so a state that you have yielded must not change later.

Hint 1: Which number tells where an epoch stands, whatever ranks and batch sizes had a
part in it?
Hint 2: All ranks shuffle all samples with a generator made of seed and epoch. A step
takes the next W × B of that list, and each rank takes its part. The state is the epoch
and how many samples all ranks together have read.
Hint 3: `part = order[start : start + world_size * batch_size]`, and this rank takes
`part[rank::world_size]`. Yield a new dict each time, `{"epoch": epoch, "start": end}`,
and at the end `{"epoch": epoch + 1, "start": 0}`.
"""


# %% solution
def ex9_6(num_samples, batch_size, seed, rank, world_size, state=None):
    """Yield (this rank's indices, the state after the step) to the epoch's end."""
    state = state or {"epoch": 0, "start": 0}
    epoch, start = state["epoch"], state["start"]
    dice = torch.Generator().manual_seed(seed * 2**20 + epoch)
    order = torch.randperm(num_samples, generator=dice).tolist()
    while start < num_samples:
        part = order[start : start + world_size * batch_size]
        start += len(part)
        after = {"epoch": epoch, "start": start}
        if start == num_samples:
            after = {"epoch": epoch + 1, "start": 0}
        yield part[rank::world_size], after


# %% check
from collections import Counter

CASES = {  # samples, then the jobs of an epoch: (ranks, batch size, steps or None)
    "one rank, never stopped": (100, [(1, 8, None)]),
    "two ranks, never stopped": (17, [(2, 3, None)]),
    "a number that divides": (24, [(3, 4, None)]),
    "fewer samples than ranks": (3, [(4, 2, None)]),
    "stopped and started again": (17, [(2, 3, 2), (2, 3, None)]),
    "stopped after each step": (17, [(2, 2, 1)] * 4 + [(2, 2, None)]),
    "with another batch size": (40, [(2, 6, 2), (2, 2, None)]),
    "on fewer ranks": (40, [(4, 3, 2), (3, 3, None)]),
    "on more ranks": (41, [(2, 3, 3), (4, 3, None)]),
    "three jobs, all different": (61, [(4, 2, 3), (1, 5, 2), (3, 4, None)]),
}


def steps_of(answer, num, size, batch_size, state):
    """Return [(the ranks' batches, their states)] of the rest of an epoch."""
    made = []
    for r in range(size):
        given = json.loads(json.dumps(state))
        with undrawn():
            pairs = answer(num, batch_size, 5, r, size, given)
            pairs = list(itertools.islice(pairs, 99))
        made.append([looked_at(pair, batch_size) for pair in pairs])
    if len({len(pairs) for pairs in made}) > 1:
        raise Wrong(f"the ranks make {[len(pairs) for pairs in made]} steps.")
    steps = [tuple(zip(*row, strict=True)) for row in zip(*made, strict=True)]
    for number, (batches, _) in enumerate(steps, 1):
        if not any(batches):
            raise Wrong(f"nobody reads anything in step {number} of {len(steps)}.")
    for (_, early), (_, late) in itertools.pairwise(steps):
        if early[0] == late[0]:
            raise Wrong(f"""it yields the same state after two steps, {early[0]}. If it
                is one dict that you change: a loader that is ahead sees the change.""")
    return steps


def looked_at(pair, batch_size):
    """Return the pair, if it is one."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise Wrong(f"it yields {pair!r:.60}, not (batch, state).")
    batch, state = pair
    batch = integers(batch, "a list of indices")
    if len(batch) > batch_size:
        raise Wrong(f"a batch has {len(batch)} samples; {batch_size} are allowed.")
    try:
        text = json.dumps(state)
    except TypeError as error:
        raise Wrong(f"the state can't be written as JSON: {error}.") from None
    if not isinstance(state, dict) or len(text) > 200:
        raise Wrong(f"the state is {text:.60} …, {len(text)} characters of JSON.")
    return batch, state


def check(answer, case):
    for name, (num, jobs) in case.each(CASES):
        state, orders = None, []
        for epoch in range(2):
            read, firsts = [], []
            for place, (size, batch_size, stop) in enumerate(jobs):
                steps = steps_of(answer, num, size, batch_size, state)[:stop]
                if not steps:
                    raise Wrong(f"job {place + 1} of epoch {epoch} makes no step.")
                firsts.append(steps[0][0])
                for batches, _ in steps:
                    read += [index for batch in batches for index in batch]
                state = steps[-1][1][0 if place % 2 else -1]  # of any rank
            judge(read, num, epoch, jobs, firsts)
            orders.append(read)
        if num > 5 and orders[0] == orders[1]:
            raise Wrong("every epoch has the same order.")
        if num > 5 and orders[0] == sorted(orders[0]):
            raise Wrong("the samples come in their own order, not in a random one.")
    case("another seed")
    by_seed = [list(list(answer(30, 30, seed, 0, 1))[0][0]) for seed in (5, 6)]
    if by_seed[0] == by_seed[1]:
        raise Wrong("two seeds have the same order.")


def judge(read, num, epoch, jobs, firsts):
    """Did every sample come once?"""
    counts = Counter(read)
    if odd := [index for index in counts if not 0 <= index < num]:
        raise Wrong(f"index {odd[0]} is read; 0 to {num - 1} exist.")
    twice, lost = sum(n > 1 for n in counts.values()), num - len(counts)
    if not twice and not lost:
        return
    ranks, sizes, _ = (len(set(values)) > 1 for values in zip(*jobs))
    changes = ["ranks"] * ranks + ["batch size"] * sizes
    why = "The jobs had as many ranks and the same batch size."
    if len(jobs) == 1:
        why = "The job was not even stopped."
    elif firsts[0] == firsts[1] and jobs[0][:2] == jobs[1][:2]:
        why = "The second job began where the first did."
    elif changes:
        why = f"The jobs differ in their {' and '.join(changes)}."
    raise Wrong(f"""in epoch {epoch}, {twice} of {num} samples come more than once, and
        {lost} never. {why}""")
