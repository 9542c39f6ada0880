"""Load what fits, report the rest.

Ranks: 1
Minutes: 12

You want to fine-tune a model, but the file was made by a model with another head.
`strict=False` ignores names that are missing or unknown, but it still fails on a tensor
of another shape.

`ex3_2(model, saved)` gets a model and the state dict of a file. Copy each tensor of
`saved` into the model if both its name **and** its shape fit. Buffers count too. Return
what did not fit:

```
{"missing": [...],      # names of the model that the file lacks
 "unexpected": [...],   # names of the file that the model lacks
 "shapes": {name: (shape in the file, shape in the model)}}  # tuples
```

The names may come in any order, and each one is in only one of the three. The model's
parameters must stay the same objects, because the optimizer holds them, and keep their
dtype. Leave `saved` as it is.

Hint 1: What does `torch.zeros(4, 3).copy_(torch.ones(1, 3))` do? Do these shapes fit?
Hint 2: Compare `saved` with `model.state_dict()`, name by name, before anything is
    copied. Then load a dictionary that holds only what fits.
Hint 3: `model.load_state_dict(fit, strict=False)` copies. Its `missing_keys` also name
    those that you left out because of their shapes.
"""


# %% solution
def ex3_2(model, saved):
    """Copy what fits into `model`; return what does not."""
    own = model.state_dict()
    both = [name for name in own if name in saved]
    shapes = {name: (tuple(saved[name].shape), tuple(own[name].shape)) for name in both}
    shapes = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    fit = {name: saved[name] for name in both if name not in shapes}
    model.load_state_dict(fit, strict=False)
    missing = [name for name in own if name not in saved]
    unexpected = [name for name in saved if name not in own]
    return {"missing": missing, "unexpected": unexpected, "shapes": shapes}


# %% check
def net(classes=3):
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


def pair(key, value):
    """Return two shapes as tuples, whatever kind of sequence they were."""
    try:
        file, model = map(tuple, value)
    except (TypeError, ValueError):
        raise Wrong(f"""the report's shapes[{key!r}] is {value!r:.60}; a pair is asked
            for: the shape in the file, and the shape in the model.""") from None
    return file, model


def check(answer, case):
    def ask(name, model, saved):
        case(name)
        before = {key: t.clone() for key, t in model.state_dict().items()}
        file = {key: t.clone() for key, t in saved.items()}
        missing, unexpected = before.keys() - file.keys(), file.keys() - before.keys()
        odd = [k for k in before if k in file and file[k].shape != before[k].shape]
        shapes = {k: (tuple(file[k].shape), tuple(before[k].shape)) for k in odd}
        params = dict(model.named_parameters())
        with Untouched(saved=saved):
            report = answer(model, saved)
        for key, tensor in model.state_dict().items():
            what = f"`{key}` of the model"
            if key in missing or key in shapes:
                expect(f"{what}, which cannot be loaded,", tensor, before[key])
            else:
                expect(what, tensor, saved[key].to(tensor.dtype))
        for key, param in model.named_parameters():
            if param is not params[key]:
                raise Wrong(f"`{key}` is another object now: an optimizer has lost it.")
            if not param.requires_grad or not param.is_leaf:
                raise Wrong(f"`{key}` cannot be trained any more.")
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor += 1
        for key in saved:
            if not torch.equal(saved[key], file[key]):
                raise Wrong(f"""`{key}` of the model is the file's own tensor: who
                    trains the model changes `saved`. Copy the numbers.""")
        if isinstance(report, dict):
            for key in "missing", "unexpected":
                if isinstance(report.get(key), (list, tuple, set)):
                    report = report | {key: sorted(report[key])}
            if isinstance(found := report.get("shapes"), dict):
                report = report | {"shapes": {k: pair(k, v) for k, v in found.items()}}
        want = {"missing": sorted(missing), "unexpected": sorted(unexpected)}
        expect("the report", report, want | {"shapes": shapes})

    def but(name, changes):
        saved = net().state_dict() | changes
        ask(name, net(), saved)

    count = "1.num_batches_tracked"
    ask("everything fits", net(), net().state_dict())
    ask("another head", net(), net(7).state_dict())
    but("a shape that would be broadcast", {"2.bias": torch.ones(1)})
    changes = {"2.weight": torch.ones(5, 3), "1.weight": torch.ones(1, 5)}
    but("as many numbers in another shape", changes)
    but("a vector of one for a number", {count: torch.tensor([7])})
    saved = net().state_dict()
    del saved["0.bias"], saved["1.running_mean"]
    ask("missing names", net(), saved)
    but("unexpected names", {"ema": torch.ones(2), "3.weight": torch.ones(1)})
    changes = {"1.running_var": torch.full((5,), 4.0), count: torch.tensor(41)}
    but("buffers, one of integers", changes)
    saved = {key: t.half() if t.ndim else t for key, t in net().state_dict().items()}
    ask("a file in half precision", net(), saved)
    saved = {"2.weight": torch.ones(2, 2), "1.bias": torch.ones(5)}
    ask("all of it", net(), saved | {"old": torch.ones(1)})
