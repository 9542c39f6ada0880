"""Average the gradients.

Ranks: 1, 2, 4
Minutes: 10

All ranks hold replicas of `model`, and each has run its own `backward()`. Now do by
hand what DDP does.

`ex5_1(model)` is called on every rank. Replace the `.grad` of every parameter by its
mean over all ranks. The weights stay as they are. Three cases need care:

- A frozen parameter (`requires_grad=False`) has no gradient and gets none.
- If some ranks did not use a parameter in this step, its `grad` is `None` *on those
  ranks*. Their gradient counts as 0.
- Two layers may share one weight.

Hint 1: Does every rank call all_reduce equally often, whatever it has computed?
Hint 2: Go through `model.parameters()`, which is the same list on all ranks and names a
shared weight once. Skip frozen parameters, which are the same on all ranks, and put
zeros where a gradient is missing.
Hint 3: `if weight.grad is None: weight.grad = torch.zeros_like(weight)`, then
`dist.all_reduce(weight.grad)`, then divide it by the world size.
"""


# %% solution
def ex5_1(model):
    """Replace every gradient of `model` by its mean over all ranks."""
    for weight in model.parameters():  # a shared weight comes once
        if weight.requires_grad:
            if weight.grad is None:  # others may have used it
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


# %% check
def small():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def frozen():
    middle = nn.Linear(4, 4).requires_grad_(False)
    return nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))


def tied():
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 3))
    model[2].weight = nn.Parameter(model[0].weight.data.T.clone())
    model.append(nn.Linear(5, 3))
    model[3].weight = model[2].weight
    return model


CASES = {  # a model; a weight, and the ranks that lack its gradient
    "a small network": (small, "", []),
    "a frozen layer": (frozen, "", []),
    "tied weights": (tied, "", []),
    "float32 and float64":
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).double()), "", []),
    "a bias that only rank 0 used": (small, "2.bias", range(1, world_size)),
    "a weight that only the last rank used":
        (small, "0.weight", range(world_size - 1)),
    "a weight that nobody used": (small, "0.weight", range(world_size)),
}  # fmt: skip


def check(answer, case):
    for name, (make, lost, lack) in case.each(CASES):
        torch.manual_seed(5)  # replicas: the same weights on all ranks
        model, parts = make(), {}  # gradients by name: one of each rank
        for key, weight in model.named_parameters():
            seeds = [dice(r + 10) for r in range(world_size)]
            drawn = [torch.randn(weight.shape, generator=seed) for seed in seeds]
            parts[key] = [part.to(weight.dtype) + r for r, part in enumerate(drawn)]
            for r in lack if key == lost else []:
                parts[key][r] = None
            if weight.requires_grad and parts[key][rank] is not None:
                weight.grad = parts[key][rank].clone()
        with Untouched(model=model):
            answer(model)
        if make is tied and model[3].weight is not model[2].weight:
            raise Wrong("layers 2 and 3 shared one weight; now each has its own.")
        layers = [id(w) for _, w in model.named_parameters(remove_duplicate=False)]
        for key, weight in trainable(model):
            if any(part is not None for part in parts[key]):
                judge(key, weight, parts[key], layers.count(id(weight)))
            elif weight.grad is not None and weight.grad.any():
                raise Wrong(f"nobody has a gradient of `{key}`, but now it is not 0.")


def judge(key, weight, parts, num_layers):
    """Compare a gradient with the mean, and with what mistakes make of it."""
    have = [part for part in parts if part is not None]
    total, own = sum(have), have[0] * 0 if parts[rank] is None else parts[rank]
    what = f"on rank {rank}, the gradient of `{key}`"
    compare(what, weight.grad, total / world_size, {
        "This divides by the ranks that have one; the others count as 0.":
            total / len(have),
        f"{num_layers} layers share it, and it was added up for each.":
            total * world_size ** (num_layers - 2),
        "This is its own gradient, not the mean.": own,
    } | undivided(total))  # fmt: skip
