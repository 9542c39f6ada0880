"""What training holds.

Ranks: 1
Minutes: 10

A model has trained for some steps, and the gradients are still there. Return a dict of
four numbers of bytes:

- `"weights"`: the memory of the model's parameters,
- `"buffers"`: the memory of its buffers, such as BatchNorm's running means,
- `"gradients"`: the memory of the gradients that exist,
- `"optimizer"`: the memory of all tensors that the optimizer remembers.

Count memory, not tensors. Two parameters may share their memory, which then counts
once. And a tensor may be a part of a larger one: as long as it lives, all the memory of
the larger one is taken.

Hint 1: `numel` counts numbers. How many bytes has a number, and is it the same for all?
Hint 2: A tensor is a view of a storage: `tensor.untyped_storage()` has `nbytes()`, and
`data_ptr()` says which it is.
Hint 3: The optimizer's tensors are in `optimizer.state`, a dict of dicts. Put
`{storage.data_ptr(): storage.nbytes()}` together for each kind, and add up its values.
"""


# %% solution
def ex11_1(model, optimizer):
    """Return the bytes of each kind."""

    def num_bytes(tensors):
        storages = [t.untyped_storage() for t in tensors if torch.is_tensor(t)]
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

    return {
        "weights": num_bytes(model.parameters()),
        "buffers": num_bytes(model.buffers()),
        "gradients": num_bytes(p.grad for p in model.parameters()),
        "optimizer": num_bytes(
            t for state in optimizer.state.values() for t in state.values()
        ),
    }


# %% check
def net(*layers):
    return nn.Sequential(*layers)


def frozen():
    model = net(nn.Linear(6, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def tied():
    model = net(nn.Linear(6, 6), nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    return model


def shared():
    model = net(nn.Linear(6, 6), nn.Linear(6, 6, bias=False))
    model[1].weight = nn.Parameter(model[0].weight.data)  # another tensor
    return model


def rows():
    model = net(nn.Linear(6, 4))
    model[0].weight = nn.Parameter(torch.randn(100, 6)[:4])
    return model


SGD, Adam = torch.optim.SGD, torch.optim.AdamW
CASES = {
    "SGD": (lambda: net(nn.Linear(6, 5)), SGD),
    "AdamW": (lambda: net(nn.Linear(6, 5), nn.Linear(5, 3)), Adam),
    "SGD with momentum": (lambda: net(nn.Linear(6, 5)), lambda p: SGD(p, momentum=0.9)),
    "frozen layers": (frozen, Adam),
    "a tied weight": (tied, Adam),
    "weights in bfloat16": (lambda: net(nn.Linear(6, 5)).bfloat16(), Adam),
    "batch norm": (lambda: net(nn.Linear(6, 5), nn.BatchNorm1d(5)), SGD),
    "two parameters in one memory": (shared, SGD),
    "4 rows of 100": (rows, Adam),
}


def check(answer, case):
    for name, (build, make) in case.each(CASES):
        model = build()
        optimizer = make([p for p in model.parameters() if p.requires_grad])
        for step in range(2):
            optimizer.zero_grad()
            x = torch.randn(7, 6, dtype=model[0].weight.dtype)
            model(x).sum().backward()
            optimizer.step()
        got = answer(model, optimizer)
        if not isinstance(got, dict):
            raise Wrong(f"it returned {got!r:.60}, not a dict.")
        want, known = reference(got, lambda function: function(model, optimizer))
        if got != want:
            why = [f" {text}" for text, counts in known.items() if counts == got]
            raise Wrong(f"it returned {got}; it should be {want}.{''.join(why[:1])}")


# %% mistake: counts numbers
# > These are numbers, not bytes.
# - storages = [t.untyped_storage() for t in tensors if torch.is_tensor(t)]
# - return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
# + return sum(t.numel() for t in tensors if torch.is_tensor(t))
# %% mistake: counts tensors one by one
# > This counts tensors; their memory may be shared, or larger.
# - storages = [t.untyped_storage() for t in tensors if torch.is_tensor(t)]
# - return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
# + return sum(t.nbytes for t in tensors if torch.is_tensor(t))
# %% mistake: all numbers have four bytes
# > Not every number has 4 bytes.
# - storages = [t.untyped_storage() for t in tensors if torch.is_tensor(t)]
# - return sum({s.data_ptr(): s.nbytes() for s in storages}.values())
# + return sum(4 * t.numel() for t in tensors if torch.is_tensor(t))
# %% mistake: forgets Adam's step counters
# > The step counters are tensors, too.
# ~ for t in state.values() => for k, t in state.items() if k != "step"
# %% mistake: a rule in place of a look
# > This is the rule of 8 bytes for each number, and not what is there.
# - "optimizer": num_bytes(
# - t for state in optimizer.state.values() for t in state.values()
# - ),
# + "optimizer": 2 * num_bytes(model.parameters()),
