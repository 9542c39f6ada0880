"""The mean over all tokens.

Chapter: 9
Ranks: 1, 2, 3
Minutes: 15

`micro_batches` is an iterator of pairs `(x, labels)` that can be read once, and ranks
have different numbers of them, perhaps none. `model(x)` returns logits (B, T, V);
`labels` (B, T) are the right classes, and −100 marks a token that doesn't count. The
replicas are equal, have no gradients yet, and nobody has wrapped them. Return the mean
loss as a float, and leave its gradient in `.grad`, on every rank:

> the mean of `cross_entropy` over *all counted tokens of all micro-batches of all
> ranks*.

Nobody knows the number of tokens before the last micro-batch was read, and there is
memory for the activations of one only. If no token counts anywhere, the loss and the
gradients are 0. Frozen parameters stay without a gradient.

Hint 1: A mean can't be added up, but two things can. Which?
Hint 2: Backward the *sum* of the losses of each micro-batch, and count the tokens. At
the end add up gradients, losses and counts over the ranks, and divide once.
Hint 3: `F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")`. A
rank without micro-batches has gradients that are None, and has to bring zeros.
"""

# %% solution
import torch
import torch.distributed as dist
from torch.nn import functional as F


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


class Net(nn.Module):
    """A tiny model with a frozen layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.frozen(self.first(x))))


def batches_of(r, sizes):
    """Return the micro-batches of rank r; any rank can compute them."""
    dice, found = torch.Generator().manual_seed(7 + r), []
    for counts in sizes:
        x = torch.randn(len(counts), SIZE, WIDTH, generator=dice).double() + 3 * r
        labels = torch.randint(CLASSES, (len(counts), SIZE), generator=dice)
        for row, count in zip(labels, counts, strict=True):
            row[count:] = -100
        found.append((x, labels))
    return found


def loss_of(model, pairs, reduction):
    """Return the loss over some micro-batches together."""
    logits = [model(x).flatten(0, 1) for x, _ in pairs]
    labels = [labels.flatten() for _, labels in pairs]
    return F.cross_entropy(torch.cat(logits), torch.cat(labels), reduction=reduction)


def watched(model, pairs):
    """Yield the pairs; refuse two forward passes without a backward between."""
    waiting = []

    def after(module, inputs, output):
        if waiting:
            raise Wrong("two micro-batches' activations are in memory at once.")
        if output.requires_grad:
            waiting.append(True)
            output.register_hook(lambda _: waiting.clear())

    hook = model.register_forward_hook(after)
    yield from pairs
    hook.remove()


def mistakes(model, every):
    """Return what likely mistakes give: (loss, gradient) by a sentence."""
    ranks = [pairs for pairs in every if pairs]
    flat = [pair for pairs in ranks for pair in pairs]
    own = [[loss_of(model, [pair], "mean") for pair in pairs] for pairs in ranks]
    means = [sum(losses) / len(losses) for losses in own]
    sums = [loss_of(model, pairs, "sum") for pairs in ranks]
    counts = [sum((y >= 0).sum() for _, y in pairs).clamp(min=1) for pairs in ranks]
    total = sum(sums)
    slots = sum(y.numel() for _, y in flat)
    return {
        "This is the sum over the tokens, not the mean.": total,
        "This is a mean of the micro-batches' means.": sum(means) / world_size,
        "This is the mean of the ranks' means.": (
            sum(s / n for s, n in zip(sums, counts)) / world_size
        ),
        "This divides by the tokens that do not count, too.": total / slots,
        "This is the mean on this rank alone.": (
            loss_of(model, every[rank], "sum")
            / max(1, sum((y >= 0).sum() for _, y in every[rank]))
            if every[rank]
            else total * 0
        ),
        "This is divided by the number of ranks, too.": total
        / sum(counts)
        / world_size,
    }


def gradient(model, loss):
    """Return the gradient of a loss as one vector."""
    learned = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, learned, retain_graph=True)
    return torch.cat([grad.flatten() for grad in grads])


def check(answer, case):
    for name, sizes in CASES.items():
        case(name)
        torch.manual_seed(3)
        model, twin = Net().double(), Net().double()
        twin.load_state_dict(model.state_dict())
        every = [batches_of(r, sizes[r]) for r in range(world_size)]
        got = answer(model, watched(model, every[rank]))
        flat = [pair for pairs in every for pair in pairs]
        tokens = sum((labels >= 0).sum().item() for _, labels in flat)
        want = loss_of(twin, flat, "sum") / max(1, tokens)
        likely = mistakes(twin, every) if tokens else {}
        if isinstance(got, torch.Tensor) and got.numel() == 1:
            got = got.item()
        found = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if lacking := [n for n, p in found if p.grad is None]:
            raise Wrong(f"`{lacking[0]}` has no gradient on rank {rank}.")
        if model.frozen.weight.grad is not None:
            raise Wrong("`frozen.weight` is frozen, and got a gradient.")
        grads = torch.cat([p.grad.flatten() for _, p in found])
        compare(
            f"the gradient on rank {rank}",
            grads,
            gradient(twin, want),
            {said: gradient(twin, loss) for said, loss in likely.items()},
            rtol=1e-6,
            atol=1e-9,
        )
        likely = {said: loss.item() for said, loss in likely.items()}
        compare(f"the loss on rank {rank}", got, want.item(), likely)


# %% right: keeps a running mean, and sends everything in one message
def ex9_3(model, micro_batches):
    learned = [p for p in model.parameters() if p.requires_grad]
    flat = torch.zeros(sum(p.numel() for p in learned) + 2, dtype=torch.double)
    for x, labels in micro_batches:
        loss = F.cross_entropy(model(x).transpose(1, 2), labels, reduction="none").sum()
        grads = torch.autograd.grad(loss, learned)
        count = (labels != -100).sum().view(1)
        flat += torch.cat([g.flatten() for g in grads] + [loss.detach().view(1), count])
    dist.all_reduce(flat)
    flat = flat / flat[-1].clamp(min=1)
    start = 0
    for param in learned:
        part = flat[start : start + param.numel()]
        param.grad = part.view_as(param).to(param.dtype)
        start += param.numel()
    return flat[-2]


# %% wrong: the mean of the micro-batches' means
# = total, num = 0.0, 0
# = for x, labels in micro_batches:
# =     loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten())
# =     loss.backward()
# =     total, num = total + loss.item(), num + 1
# = mean = torch.tensor(total / max(1, num), dtype=torch.double)
# = dist.all_reduce(mean)
# = for param in model.parameters():
# =     if param.requires_grad:
# =         if param.grad is None:
# =             param.grad = torch.zeros_like(param)
# =         param.grad /= max(1, num)
# =         dist.all_reduce(param.grad)
# =         param.grad /= dist.get_world_size()
# = return (mean / dist.get_world_size()).item()
# %% wrong: each rank divides by its own tokens, and then comes the mean over ranks
# = total, tokens = torch.zeros((), dtype=torch.double), 0
# = for x, labels in micro_batches:
# =     logits = model(x).flatten(0, 1)
# =     loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
# =     loss.backward()
# =     total, tokens = total + loss.detach(), tokens + (labels != -100).sum().item()
# = total /= max(1, tokens)
# = dist.all_reduce(total)
# = for param in model.parameters():
# =     if param.requires_grad:
# =         if param.grad is None:
# =             param.grad = torch.zeros_like(param)
# =         param.grad /= max(1, tokens)
# =         dist.all_reduce(param.grad)
# =         param.grad /= dist.get_world_size()
# = return (total / dist.get_world_size()).item()
# %% wrong: counts every place, with or without a label
# - logits, flat = model(x).flatten(0, 1), labels.flatten()
# - loss = F.cross_entropy(logits, flat, reduction="sum")
# + logits = model(x).flatten(0, 1)
# + loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
# - total += torch.tensor([loss.item(), (flat != -100).sum().item()])
# + total += torch.tensor([loss.item(), labels.numel()])
# - loss, tokens = total[0].item(), max(1, total[1].item())
# -         param.grad /= tokens
# - return loss / tokens
# +         param.grad /= total[1]
# + return (total[0] / total[1]).item()
# %% wrong: a rank without micro-batches doesn't take part
# - if param.requires_grad:
# -     if param.grad is None:
# -         param.grad = torch.zeros_like(param)
# + if param.grad is not None:
# %% wrong: 0 / 0 when nothing counts
# - loss, tokens = total[0].item(), max(1, total[1].item())
# -         param.grad /= tokens
# - return loss / tokens
# +         param.grad /= total[1]
# + return (total[0] / total[1]).item()
# %% wrong: reads all micro-batches first, and keeps all activations
# = losses, tokens = [], 0
# = for x, labels in micro_batches:
# =     logits = model(x).flatten(0, 1)
# =     losses.append(F.cross_entropy(logits, labels.flatten(), reduction="sum"))
# =     tokens += (labels != -100).sum().item()
# = total = torch.tensor([tokens], dtype=torch.double)
# = dist.all_reduce(total)
# = loss = sum(losses) / total[0].clamp(min=1)
# = loss.backward()
# = for param in model.parameters():
# =     if param.requires_grad:
# =         dist.all_reduce(param.grad)
# = return loss.item()
