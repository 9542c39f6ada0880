"""The exact accuracy, each sample once.

Ranks: 1, 2, 4
Minutes: 15

`ex5_3(model, x, y, batch_size)` is called on every rank, and the ranks share the work.
All hold the same model and the same test set: samples `x` of shape `(n, D)` and labels
`y` of shape `(n,)`. Return the accuracy over all n samples, as a float from 0 to 1, the
same on every rank.

- Each sample goes through the model on exactly one rank. With W ranks, a rank takes at
  most ⌈n / W⌉ samples, and at most `batch_size` at a time. n may be smaller than W.
- The model has dropout and batch normalization, so evaluate it in evaluation mode.
- Afterwards, put each of its modules back into the mode that it came in. The modes need
  not agree: a model that trains may have frozen norms.

Hint 1: Why is a `DistributedSampler` wrong here? Why is the mean of the ranks'
accuracies?
Hint 2: Take every W-th sample, which may leave a rank with fewer, or none. Count hits
and samples, add up both over the ranks once, and divide once.
Hint 3: `x[rank::world_size].split(batch_size)`; `counts = torch.tensor([hits, num])`,
`dist.all_reduce(counts)`. Before `model.eval()`: `modes = {m: m.training for m in
model.modules()}`; afterwards `m.training = mode` for each. `model.train()` would set
all of them.
"""


# %% solution
def ex5_3(model, x, y, batch_size):
    """Return the accuracy of `model` on x (n, D), y (n,), shared by all ranks."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    modes, hits = {module: module.training for module in model.modules()}, 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in zip(
            x[mine].split(batch_size), y[mine].split(batch_size), strict=True
        ):
            hits += (model(inputs).argmax(dim=1) == labels).sum()
    for module, mode in modes.items():
        module.training = mode
    counts = torch.tensor([hits, len(y[mine])])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


# %% check
FROZEN = "a frozen norm in a model that trains"
CASES = {  # samples, and which the model gets wrong
    "a remainder": (10, {0}),
    "errors on one rank only": (17, {0, 4, 8}),
    "an even split": (16, {1, 15}),
    "the last one wrong": (101, {100}),
    "fewer samples than ranks": (3, {0}),
    "one sample": (1, set()),
    FROZEN: (8, {5}),
}


def check(answer, case):
    torch.manual_seed(3)
    model, seen = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.6), nn.Linear(4, 3)), []
    model[0].running_mean += torch.randn(4)

    def note(model, inputs):
        seen.append(len(inputs[0]))
        if any(m.training for m in model.modules()) and len(inputs[0]):
            raise Wrong("the model is in training mode: dropout drops, norms learn.")

    for number, (name, (num, errors)) in enumerate(CASES.items()):
        if name == FROZEN and world_size == 1:
            continue  # a wrong accuracy on more ranks should be told first
        case(name)
        x = torch.randn(num, 4)
        labels = model.eval()(x).argmax(dim=1)
        hits = torch.tensor([i not in errors for i in range(num)])
        y = torch.where(hits, labels, (labels + 1) % 3)
        model.train(number % 2 == 0)
        if name == FROZEN:
            model[0].eval()
        modes = {key: module.training for key, module in model.named_modules()}
        seen.clear()
        torch.manual_seed(rank)
        with Untouched(model=model, x=x, y=y), model.register_forward_pre_hook(note):
            got = answer(model, x, y, 4)
        torch.manual_seed(3 + num)
        for key, module in model.named_modules():
            if module.training != modes[key]:
                who = f"`{key}`" if key else "the model"
                raise Wrong(f"`training` of {who} is {module.training} afterwards.")
        judge(hits.double(), got)
        if max(seen, default=0) > 4:
            raise Wrong(f"a batch has {max(seen)} samples; batch_size is 4.")
        if sum(seen) > (share := -(-num // world_size)):
            raise Wrong(f"""the accuracy is right, but {sum(seen)} of {num} samples went
                through the model on rank {rank}; its share is {share} at most.""")


def judge(hits, got):
    """Compare the accuracy with the right one, and with likely mistakes."""
    num, shares = len(hits), [hits[r::world_size] for r in range(world_size)]
    padded = torch.cat([hits] * world_size)[: -(-num // world_size) * world_size]
    means = torch.stack([s.mean() for s in shares if len(s)])
    even = num // world_size * world_size
    blocks = [block.mean() for block in hits.tensor_split(world_size)]
    batches = torch.stack([b.mean() for s in shares for b in s.split(4) if len(b)])
    mistakes = {
        "Samples that fill up the last batch are counted twice.": padded.mean(),
        "This is the mean of the ranks' accuracies.": means.mean(),
        "This is the mean of the accuracies of blocks.": sum(blocks) / world_size,
        "The ranks' accuracies are added up.": means.sum(),
        f"The last {num - even} of {num} are left out.": hits[:even].mean(),
        f"This is rank {rank}'s own share.": shares[rank].mean(),
        "This is the number of hits.": hits.sum(),
        "This is in percent; a share of 1 is asked for.": 100 * hits.mean(),
        "Each batch weighs the same, also the last one, which is smaller.":
            batches.mean(),
    }  # fmt: skip
    mistakes = {key: value.item() for key, value in mistakes.items()}
    what = f"with {int(hits.sum())} of {num} right, the accuracy on rank {rank}"
    compare(what, got, hits.mean().item(), mistakes, atol=1e-6)
