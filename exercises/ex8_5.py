"""DDP that waits for nobody.

Ranks: 1, 2, 4
Minutes: 60
Level: hard

The check calls `run = ex8_5(buckets)` once on every rank. `buckets` is a list of lists
of parameters, and the parameters are equal on all ranks. In each step, instead of
`loss.backward()`, all ranks call `run(loss)`, or all call `run(loss, sync=False)`.

- `run(loss, sync=False)` only accumulates, without a collective.
- After `run(loss)`, each gradient is the mean over the ranks of what they have
  accumulated, this step included. A rank that has no gradient of a parameter counts
  with a 0. If no rank has a gradient, it stays None.
- For each bucket, call `dist.all_reduce(flat, async_op=True)` once, with the gradients
  of the bucket's parameters and nothing else. Send the buckets in the order of the
  list, on all ranks.
- **Which** parameters a loss uses differs from step to step and from rank to rank. A
  parameter that this loss does not use must not hold up its bucket. So send a bucket
  during backward, as soon as this loss has no more gradients to add to the bucket and
  the buckets before it have left.

A loss may use a parameter twice, and uses at least one parameter.

Hint 1: A hook tells you that a gradient has come, but none tells you that it won't.
What do you have before backward that knows which parameters it will reach?
Hint 2: Walk the graph from `loss.grad_fn` along `next_functions`; a node with a
`variable` is a leaf. All other parameters are ready at once. And which rank knows that
no rank has a gradient? Only all together, so add up one number for each parameter.
Hint 3: Hooks are called in `sync=False`, too, and must then do nothing. `run` marks the
unused as ready and sends what can go, then calls `backward`, whose hooks do the rest;
then it all_reduces the tensor that says who has a gradient, waits, and copies back.
"""


# %% solution
def ex8_5(buckets):
    """Install hooks; return run(loss, sync=True), which does backward and averages."""
    weights = [weight for bucket in buckets for weight in bucket]
    ready, works = None, []  # None: nobody averages in this step

    def reached(loss):
        found, seen, waiting = set(), set(), [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                found.add(getattr(node, "variable", None))
                waiting += [after for after, _ in node.next_functions]
        return found

    def send():
        while len(works) < len(buckets) and ready.issuperset(buckets[len(works)]):
            bucket = buckets[len(works)]
            parts = [w.grad if w.grad is not None else w * 0 for w in bucket]
            flat = torch.cat([part.detach().flatten() for part in parts])
            works.append((dist.all_reduce(flat, async_op=True), flat))

    def on_ready(weight):
        if ready is not None:
            ready.add(weight)
            send()

    def run(loss, sync=True):
        nonlocal ready
        if not sync:
            return loss.backward()
        ready = set(weights) - reached(loss)
        send()
        loss.backward()
        have = torch.tensor([float(w.grad is not None) for w in weights])
        dist.all_reduce(have)
        anybody = dict(zip(weights, have.tolist()))
        for (work, flat), bucket in zip(works, buckets):
            work.wait()
            parts = flat.split([w.numel() for w in bucket])
            for weight, part in zip(bucket, parts):
                if anybody[weight]:
                    weight.grad = part.view_as(weight) / dist.get_world_size()
        works.clear()
        ready = None

    for weight in weights:
        weight.register_post_accumulate_grad_hook(on_ready)
    return run


# %% check
NAMES = "abcdef"
CASES = {  # by step: what each rank uses, in turn; capitals twice; "-": not averaged
    "all parameters": [["abcdef"], ["abcdef"]],
    "steps that only accumulate":
        [["abcdef", "-"], ["abcdef", "-"], ["abcdef"], ["abcdef", "-"], ["abcdef"]],
    "one that no rank uses": [["abcef"], ["abcdef"], ["bcdef"]],
    "the last of all, unused": [["bcdef"], ["abcde"]],
    "other ones on each rank":
        [["abcf", "adef", "f", "abcde"], ["cf", "abcdef", "abd", "e"]],
    "unused after accumulation": [["abcdef", "ab", "-"], ["ab", "cdf"], ["f"]],
    "one that is used twice": [["aBcdEf", "Abcdef"], ["abcdEf"]],
}  # fmt: skip
SIZES = {"a": (3,), "b": (2, 3), "c": (5,), "d": (1,), "e": (2, 3), "f": (4,)}
BUCKETS = "fe", "dcb", "a"  # in the order in which gradients come
NUMBERS = [sum(torch.Size(SIZES[n]).numel() for n in b) for b in BUCKETS]
all_reduce = dist.all_reduce


class Watch(Buckets):
    """Stand in for dist.all_reduce: buckets, then one number for each parameter."""

    sync = True

    def __call__(self, tensor, *args, async_op=False, **kwargs):
        if not self.sync:
            raise Wrong("an all_reduce is called in a step with sync=False.")
        number, size = len(self.works), tensor.numel()
        if number < len(NUMBERS) and size != len(NAMES):
            if not async_op:
                raise Wrong("an all_reduce of a bucket has no async_op=True.")
            return self.send(tensor, *args, **kwargs)
        if size > len(NAMES):
            raise Wrong(f"""after {number} buckets comes an all_reduce of {size} numbers
                more; each bucket takes one.""")
        return all_reduce(tensor, *args, async_op=async_op, **kwargs)


def loss_of(weights, used, step, r):
    """Return a loss whose gradients come in the order of the buckets."""
    x = torch.ones(())
    for i, name in enumerate(NAMES):
        if name in used.lower():
            w, factor = weights[name], 1 + 0.1 * step + 0.3 * r + 0.2 * i
            x = x.sin() + factor * w.square().sum()
            x = x + w.sum() if name.upper() in used else x
    return x


def plan(used):
    """Return the gradients that come before each bucket may leave, in their order."""
    come, last = [n for n in reversed(NAMES) if n in used.lower()], 0
    for bucket in BUCKETS:
        last = max([last, *(come.index(n) + 1 for n in bucket if n in come)])
        yield last


def check(answer, case):
    only("all_reduce", "all_reduce is enough.")
    for number, (name, steps) in enumerate(CASES.items()):
        case(name)
        seed, weights = dice(number), {}
        for n in NAMES:
            weights[n] = nn.Parameter(torch.randn(SIZES[n], generator=seed))
        watch = Watch(NUMBERS, weights.values())
        patch(dist, "all_reduce", watch)
        run = answer([[weights[n] for n in bucket] for bucket in BUCKETS])
        if not callable(run):
            raise Wrong(f"it returned {run!r:.60}, not a function run(loss, sync).")
        play_case(run, steps, weights, watch)


def play_case(run, steps, weights, watch):
    """Run all steps, and compare each with what one process computes."""
    know = [dict.fromkeys(NAMES) for _ in range(world_size)]
    for step, uses in enumerate(steps):
        when, sync = f"in step {step + 1} of {len(steps)}", "-" not in uses
        uses = [use for use in uses if use != "-"]
        for r in range(world_size):
            alone = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
            loss_of(alone, uses[r % len(uses)], step, r).backward()
            for n, weight in alone.items():
                if weight.grad is not None:
                    held = know[r][n]
                    know[r][n] = weight.grad + (0 if held is None else held)
        used, watch.sync = uses[rank % len(uses)], sync
        watch.begin()
        loss = loss_of(weights, used, step, rank)
        run(loss) if sync else run(loss, sync=False)
        if not (come := watch.num_gradients()):
            raise Wrong(f"{when}, no gradient was computed: run() calls backward.")
        if sync:
            if (left := len(watch.works)) < len(BUCKETS):
                raise Wrong(f"{when}, {left} of {len(BUCKETS)} buckets were sent.")
            for i, (should, bucket) in enumerate(zip(plan(used), BUCKETS)):
                if (before := watch.num_gradients(i)) > should:
                    raise Wrong(f"""{when}, bucket {i} left after {before} of {come}
                        gradients, and had all of its own after {should}. Rank {rank}'s
                        loss uses {"".join(n for n in NAMES if n in used.lower())}, and
                        the bucket holds {bucket}.""")
            if idle := watch.num_idle():
                raise Wrong(f"{when}, run() did not wait for {idle} all_reduces.")
        for n, weight in weights.items():
            parts = [each[n] for each in know]
            what = f"{when}, the gradient of {n} on rank {rank}"
            compare_gradient(what, weight.grad, parts, sync)
            if sync and any(part is not None for part in parts):
                mean = sum(p for p in parts if p is not None) / world_size
                for each in know:
                    each[n] = mean.clone()


def compare_gradient(what, got, parts, sync):
    """Compare with the mean over the ranks, or in a step without it with rank's own."""
    there = [p for p in parts if p is not None]
    if not there or (not sync and parts[rank] is None):
        if got is not None:
            who = "no rank has" if sync else "this rank does not have"
            raise Wrong(f"{what} holds numbers; {who} one, so it stays None.")
        return
    total = sum(there)
    own = torch.full_like(total, torch.nan) if parts[rank] is None else parts[rank]
    compare(what, got, total / world_size if sync else own, {
        "This is the rank's own gradient.": own,
        "This is the sum: divide it by the world size.": total,
        "This is the mean over the ranks that have one; the others count as 0.":
            total / len(there),
        "It was averaged, in a step with sync=False.": total / world_size,
        "It is zero on a rank that does not use it.": torch.zeros_like(total),
    }, 1e-4, 1e-5)  # fmt: skip
