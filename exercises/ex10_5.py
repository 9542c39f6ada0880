"""AdamW for two-byte weights.

Ranks: 1, 2, 4
Minutes: 40
Level: hard

`weights` is a list of bfloat16 tensors, equal on all ranks. `gradients` are the
gradients of this rank's batch, in bfloat16 too. Take one step of AdamW with the *mean*
gradient of all ranks. The weights must come out as if one process had

* averaged the gradients in float32,
* kept a float32 copy of the weights, made before the first step, and let
  `torch.optim.AdamW(copy, lr, betas, eps, weight_decay)` step on that copy,
* and rounded the copy to the nearest bfloat16 numbers.

`state` is an empty dict at the first step, and you may keep whatever you like in it.
But memory is scarce: if the weights have n numbers in all, the tensors in one rank's
`state` may hold at most 3 ⌈n / W⌉ numbers. So spread what you keep over the ranks. n
may not be divisible by W, and may even be less than W. All ranks must end with the same
bits. Change `weights` in place.

Hint 1: AdamW treats each number by itself, so it does not care where a tensor ends. Lay
all of them in one row, and give each rank a piece of the row.
Hint 2: Sum the float32 row of gradients over the ranks, divide, and keep your piece.
Its copy and its two moments are all that you need. Round at the very end.
Hint 3: `master.mul_(1 - lr * decay)`; `m.lerp_(g, 1 - b1)`; `v.mul_(b2).addcmul_(g, g,
value=1 - b2)`; `master -= lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)`.
Then pad the piece, `dist.all_gather`, and copy from the row into the weights.
"""


# %% stub
# - from torch.nn import functional as F
# %% solution
def ex10_5(weights, gradients, state, lr, betas, eps, weight_decay):
    """Take a step of AdamW with float32 copies that are spread over the ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    row = torch.cat([g.flatten() for g in gradients]).float()
    dist.all_reduce(row)
    size = -(-len(row) // world_size)
    mine = slice(rank * size, (rank + 1) * size)
    if not state:
        master = torch.cat([w.flatten() for w in weights])[mine].float()
        state |= {"t": 0, "master": master}
        state |= {"m": torch.zeros_like(master), "v": torch.zeros_like(master)}
    state["t"] += 1
    g, master, m, v = row[mine] / world_size, state["master"], state["m"], state["v"]
    m.lerp_(g, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    m, v = m / (1 - betas[0] ** state["t"]), v / (1 - betas[1] ** state["t"])
    master.mul_(1 - lr * weight_decay)
    master -= lr * m / (v.sqrt() + eps)
    piece = F.pad(master.bfloat16(), (0, size - len(master)))
    pieces = [torch.empty_like(piece) for _ in range(world_size)]
    dist.all_gather(pieces, piece)
    sizes = [w.numel() for w in weights]
    for w, new in zip(weights, torch.cat(pieces)[: len(row)].split(sizes)):
        w.copy_(new.view_as(w))


# %% check
BF16 = torch.bfloat16
CASES = {  # shapes, steps, lr, eps, weight decay, the kind of gradients
    "one step": ([(4, 3), (4,)], 1, 0.05, 1e-8, 0.1, "random"),
    "steps that bfloat16 would lose": ([(4, 4), (3,)], 30, 1e-3, 1e-8, 0.0, "steady"),
    "n does not divide by W": ([(5,), (), (3, 3)], 20, 2e-3, 1e-8, 0.0, "random"),
    "fewer numbers than ranks": ([(1,), (1, 1)], 20, 2e-3, 1e-8, 0.0, "steady"),
    "decay alone": ([(6,), (2, 3)], 30, 1e-2, 1e-8, 0.1, "zero"),
    "decay and gradients": ([(6,), (2, 3)], 30, 5e-3, 1e-8, 0.3, "random"),
    "an eps that matters": ([(7,), (2, 2)], 20, 1e-2, 0.3, 0.0, "steady"),
    "gradients whose sum needs float32": ([(40,)], 12, 4e-3, 1e-8, 0.0, "cancel"),
}
BETAS, NEAR = (0.9, 0.99), (2.0**-7, 1e-6)
MISTAKES = {  # how they run, if they run
    "Small steps on bfloat16 weights are rounded away.": {"copy": False},
    "The weights did not move.": None,
    "Weight decay was added to the gradient, as Adam does, not AdamW.":
        {"coupled": True},
    "The moments are not corrected for starting at zero.": {"fix": False},
    "This is a step on this rank's own gradients.":
        {"mean": lambda every: every[rank]},
    "This is a step on the sum of the gradients, not their mean.":
        {"mean": lambda every: every.sum(0)},
}  # fmt: skip


def brought(kind, shapes, step):
    """Return what each rank brings in a step, W lists of bfloat16 tensors."""
    seed, sets = dice(100 + step), []
    for shape in shapes:
        noise = torch.randn(world_size, *shape, generator=seed)
        mean = torch.linspace(0.4, 1.0, noise[0].numel()).view(shape)
        every = {"random": noise, "steady": mean + 0.3 * noise, "zero": 0 * noise}
        if kind == "cancel":  # 300, -300 and small ones, on ranks drawn for each number
            large = torch.zeros_like(noise)
            large[0], large[-1] = 300.0, -300.0 if world_size > 1 else 300.0
            order = torch.rand(noise.shape, generator=seed).argsort(0)
            small = mean if world_size < 4 else mean * 0.4
            every["cancel"] = (small + large).gather(0, order)
        sets.append(every[kind].to(BF16))
    return [[every[r] for every in sets] for r in range(world_size)]


def run(task, mean=lambda every: every.mean(0), copy=True, coupled=False, fix=True):
    """Return the weights after all steps, as one process would have them."""
    start, history, lr, eps, decay = task
    where = torch.float32 if copy else BF16
    kept = [w.to(where, copy=True) for w in start]
    moments = [(torch.zeros(w.shape), torch.zeros(w.shape)) for w in start]
    for t, every in enumerate(history, 1):
        for i, (w, (m, v)) in enumerate(zip(kept, moments)):
            g = mean(torch.stack([one[i] for one in every]).double()).float()
            g = g + decay * w if coupled else g
            w.mul_(1 if coupled else 1 - lr * decay)
            m.lerp_(g.float(), 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(g.float(), g.float(), value=1 - BETAS[1])
            one, two = (1 - b**t if fix else 1 for b in BETAS)
            w.sub_((lr * (m / one) / ((v / two).sqrt() + eps)).to(where))
    return [w.to(BF16) for w in kept]


def held(value, seen):
    """Count the numbers of all tensors in what a state holds."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() // max(1, value.element_size())
    if isinstance(value, torch.optim.Optimizer):
        value = [value.param_groups, list(value.state.values())]
    value = list(value.values()) if isinstance(value, dict) else value
    parts = value if isinstance(value, (list, tuple)) else ()
    return sum(held(one, seen) for one in parts)


def check(answer, case):
    memory, apart = [], []
    for name, (shapes, steps, *numbers, kind) in case.each(CASES):
        seed, (lr, eps, decay) = dice(9), numbers
        start = [(torch.rand(s, generator=seed) + 0.75).to(BF16) for s in shapes]
        history = [brought(kind, shapes, step) for step in range(steps)]
        weights, state = [w.clone() for w in start], {}
        for every in history:
            mine = [g.clone() for g in every[rank]]
            answer(weights, mine, state, lr, BETAS, eps, decay)
        task = start, history, *numbers
        want, flat = run(task), torch.cat([w.flatten() for w in weights])
        for i, (weight, wanted) in enumerate(zip(weights, want)):
            if tuple(weight.shape) != shapes[i] or weight.dtype != BF16:
                raise Wrong(f"weight {i} is now {weight.dtype}, {weight.shape}.")
            what = f"weight {i} on rank {rank} after {steps} steps"
            try:
                expect(what, weight, wanted, *NEAR)
            except Wrong:  # only now, as each mistake takes as long as all steps
                compare(what, weight, wanted, {
                    words: run(task, **how)[i] if how else start[i]
                    for words, how in MISTAKES.items()
                }, *NEAR)  # fmt: skip
        apart.append(int((flat != torch.cat([w.flatten() for w in want])).sum()))
        for r, one in enumerate(bits := everyone(flat)):
            if not torch.equal(one, bits[0]):
                raise Wrong(f"the weights of rank 0 and rank {r} are not the same.")
        memory.append((held(state, set()), 3 * -(-len(flat) // world_size), len(flat)))
    case("the last bits")
    if sum(apart) > 20:  # a sum in another order may be rounded to the other side
        raise Wrong(f"""{sum(apart)} weights on rank {rank} are the neighbors of what
            they should be: round the copy to the nearest, when all is done.""")
    case("what the states hold")
    for has, most, num in memory:
        if has > most + 4:  # a step may be counted in a tensor
            raise Wrong(f"""the weights are right, but rank {rank}'s state holds {has}
                numbers for {num} weights on {world_size} ranks; {most} are enough.""")
