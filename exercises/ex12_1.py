"""A step of ZeRO-1.

Ranks: 1, 2, 4
Minutes: 20

All ranks have equal `weights`, a flat tensor of n numbers, and each rank has its own
`gradient` of the same shape. You train with SGD with momentum:

    momentum = 0.9 * momentum + the mean of all ranks' gradients
    weights = weights - lr * momentum

In ZeRO-1, no rank keeps all of the momentum. Cut the n numbers into W parts of
k = ⌈n / W⌉ numbers, in order. Rank r keeps the momentum of part r, in `momentum`, which
has k numbers. If W doesn't divide n, the last part is shorter, or several parts are.
The rest of their `momentum` is padding, and may hold anything.

Take one step: change `weights` and `momentum` in place. Afterwards, all ranks have
equal weights again. Don't change `gradient`.

Call one reduce_scatter and one all_gather, of W · k numbers each. Together they send as
much as the all_reduce of DDP.

Hint 1: Which gradients does a rank need for the part that it updates? Who has them?
Hint 2: A reduce_scatter gives each rank its part of the sum. The rank updates its part
of the momentum, and with it its part of the weights. An all_gather gives all ranks all
parts.
Hint 3: `dist.reduce_scatter_single(part, F.pad(gradient, (0, W * k - n)))`, and
`dist.all_gather_single(full, mine)`, whose first n numbers are the new weights.
"""


# %% solution
def ex12_1(weights, gradient, momentum, lr):
    """Update the part whose momentum this rank keeps; get the others' parts."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    num, size = len(weights), len(momentum)
    padding = 0, world_size * size - num
    mean = torch.empty_like(momentum)  # (k,)
    dist.reduce_scatter_single(mean, F.pad(gradient, padding))
    mean /= world_size
    momentum.mul_(0.9).add_(mean)
    full = F.pad(weights, padding)  # (W * k,)
    mine = full.chunk(world_size)[rank] - lr * momentum
    dist.all_gather_single(full, mine)
    weights.copy_(full[:num])


# %% check
REDUCE = "reduce_scatter reduce_scatter_single reduce_scatter_tensor"
GATHER = "all_gather all_gather_single all_gather_into_tensor"
CASES = {  # numbers
    "equal parts": 12,
    "the last part is shorter": 11,
    "the last part is empty": 5,
    "fewer numbers than ranks": 1,
    "a thousand numbers": 1003,
}


def check(answer, case):
    handed = []

    def note(*args, **kwargs):
        lists = [a if isinstance(a, list) else [a] for a in (*args, *kwargs.values())]
        tensors = [[t for t in some if isinstance(t, torch.Tensor)] for some in lists]
        handed.append(max(sum(t.numel() for t in some) for some in tensors))

    only(f"{REDUCE} {GATHER}", "a reduce_scatter and an all_gather are enough.")
    spy(dist, f"{REDUCE} {GATHER}", note)
    for name, num in case.each(CASES):
        size, whole = -(-num // world_size), torch.zeros(num).double()
        parts = [slice(r * size, (r + 1) * size) for r in range(world_size)]
        weights = torch.randn(num, generator=dice(num), dtype=torch.float64)
        momentum = torch.zeros(size).double()
        for step in range(1, 4):
            seeds = [dice(100 * num + 10 * step + r) for r in range(world_size)]
            grads = [torch.randn(num, generator=s, dtype=torch.float64) for s in seeds]
            total, given, before = sum(grads), grads[rank].clone(), weights.clone()
            own = torch.cat([g[part] for g, part in zip(grads, parts)])
            old, whole = whole, 0.9 * whole + total / world_size
            handed.clear()
            with Untouched(gradient=given):
                answer(weights, given, momentum, 0.1)
            if len(handed) != 2 or max(handed) > world_size * size:
                raise Wrong(f"""rank {rank} calls collectives with {handed} numbers; two
                    with {world_size * size} numbers each are enough.""")
            known = {
                "This takes the sum, not the mean, of the gradients.":
                    0.9 * old + total,
                "This takes only the rank's own gradient.": 0.9 * old + own,
                "It forgets the momentum of the steps before.": total / world_size,
                "It holds what it held before.": old,
            }  # fmt: skip
            mine, kept = parts[rank], momentum[: len(whole[parts[rank]])]
            found = {text: value[mine] for text, value in known.items()}
            what = f"after step {step}, rank {rank}'s part of the momentum"
            compare(what, kept, whole[mine], found, 1e-9, 1e-12)
            want, alone = before - 0.1 * whole, before.clone()
            alone[mine] = want[mine]
            compare(f"after step {step}, rank {rank}'s weights", weights, want, {
                "They are what they were.": before,
                "Only this rank's part has changed.": alone,
                "They move along the mean gradient, not along the momentum.":
                    before - 0.1 * total / world_size,
                "They move in the wrong direction.": before + 0.1 * whole,
            }, 1e-9, 1e-12)  # fmt: skip
