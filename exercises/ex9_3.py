"""The mean over all tokens.

Ranks: 1, 2, 3
Minutes: 15

`micro_batches` is an iterator of pairs `(x, labels)` that you can read only once. Ranks
have different numbers of pairs, perhaps none. `model(x)` returns logits (B, T, V).
`labels` (B, T) are the target classes, and −100 marks a token that doesn't count. The
replicas are equal, have no gradients yet, and are not wrapped in DDP.

On every rank, return the mean loss as a float, and leave its gradient in `.grad`. The
mean loss is the mean of `cross_entropy` over *all counted tokens of all micro-batches
of all ranks*.

You know the number of tokens only after the last micro-batch, and you have memory for
the activations of one micro-batch at a time. If no token counts anywhere, the loss and
the gradients are 0. Frozen parameters stay without a gradient.

Hint 1: A mean can't be added up, but two things can. Which?
Hint 2: Call backward on the *sum* of each micro-batch's losses, and count the tokens.
At the end add up gradients, losses and counts over the ranks, and divide once.
Hint 3: `F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")`. A
rank without micro-batches has gradients that are None, and has to bring zeros.
"""


# %% solution
def ex9_3(model, micro_batches):
    """Return the mean loss over all ranks' tokens; leave its gradient in .grad."""
    total = torch.zeros(2, dtype=torch.double)  # the sum of losses, and the tokens
    for x, labels in micro_batches:
        logits, flat = model(x).flatten(0, 1), labels.flatten()
        loss = F.cross_entropy(logits, flat, reduction="sum")
        loss.backward()
        total += torch.tensor([loss.item(), (flat != -100).sum().item()])
    dist.all_reduce(total)
    loss, tokens = total[0].item(), max(1, total[1].item())
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            dist.all_reduce(param.grad)
            param.grad /= tokens
    return loss / tokens


# %% check
CASES = {  # by rank and micro-batch: how many tokens count in each row
    "one micro-batch": [[[6, 6]]] * 3,
    "equal lengths": [[[5, 5], [5, 5]]] * 3,
    "a short micro-batch": [[[6, 6], [1, 2]]] * 3,
    "ranks of unequal lengths": [[[6, 6], [6, 5]], [[1, 2]], [[3, 1], [2, 2], [1, 1]]],
    "a micro-batch in which nothing counts": [[[4, 2], [0, 0]], [[6, 3]], [[1, 0]]],
    "a rank on which nothing counts": [[[0, 0]], [[6, 3], [2, 2]], [[1, 5]]],
    "a rank without micro-batches": [[[4, 1], [6, 6]], [], [[2, 3]]],
    "nothing counts": [[[0, 0]], [[0]], []],
}
SIZE, WIDTH, CLASSES = 6, 4, 5


def network():
    """Return a tiny model with a frozen layer."""
    torch.manual_seed(3)
    first, frozen, head = nn.Linear(WIDTH, 7), nn.Linear(7, 7), nn.Linear(7, CLASSES)
    frozen.requires_grad_(False)
    return nn.Sequential(first, frozen, nn.Tanh(), head).double()


def batches_of(r, sizes):
    """Return the micro-batches of rank r; any rank can compute them."""
    seed, found = dice(7 + r), []
    for counts in sizes:
        x = torch.randn(len(counts), SIZE, WIDTH, generator=seed).double() + 3 * r
        labels = torch.randint(CLASSES, (len(counts), SIZE), generator=seed)
        for row, count in zip(labels, counts, strict=True):
            row[count:] = -100
        found.append((x, labels))
    return found


def outcome(answer, pairs):
    """Return the gradient that an answer leaves, and its loss."""
    model = network()
    fault = "two micro-batches' activations are in memory at once."
    with one_at_a_time(model, fault=fault):
        loss = answer(model, iter(pairs))
    found = grads(model, f"`{{}}` has no gradient on rank {rank}.")
    one = isinstance(loss, torch.Tensor) and loss.numel() == 1
    return found, loss.item() if one else loss


def check(answer, case):
    for name, sizes in case.each(CASES):
        pairs = batches_of(rank, sizes[rank])
        got = outcome(answer, pairs)
        want, known = reference(got, outcome, pairs)
        for i, what in enumerate(("gradient", "loss")):
            values = {text: value[i] for text, value in known.items() if want[1]}
            compare(f"the {what} on rank {rank}", got[i], want[i], values, 1e-6, 1e-9)


# %% mistake: forgets to divide
# > This is the sum over the tokens, not the mean.
# ~ max(1, total[1].item()) => 1
# %% mistake: the mean of the micro-batches' means
# > This is a mean of the micro-batches' means.
# ~ flat, reduction="sum" => flat
# ~ (flat != -100).sum().item() => 1
# - dist.all_reduce(total)
# - loss, tokens = total[0].item(), max(1, total[1].item())
# + num, tokens = max(1, total[1].item()), dist.get_world_size()
# + dist.all_reduce(loss := total[0] / num)
# ~ dist.all_reduce(param.grad) => dist.all_reduce(param.grad.div_(num))
# %% mistake: each rank divides by its own tokens, and then comes the mean over ranks
# > This is the mean of the ranks' means.
# - dist.all_reduce(total)
# - loss, tokens = total[0].item(), max(1, total[1].item())
# + num, tokens = max(1, total[1].item()), dist.get_world_size()
# + dist.all_reduce(loss := total[0] / num)
# ~ dist.all_reduce(param.grad) => dist.all_reduce(param.grad.div_(num))
# %% mistake: counts every place, with or without a label
# > This divides by the tokens that do not count, too.
# ~ (flat != -100).sum().item => flat.numel
# %% mistake: asks no other rank
# > This is the mean on this rank alone.
# - dist.all_reduce(total)
# - dist.all_reduce(param.grad)
# %% mistake: the mean over ranks of what is divided by all tokens
# > This is divided by the number of ranks, too.
# ~ max(1, total[1].item()) => max(1, total[1].item()) * dist.get_world_size()
