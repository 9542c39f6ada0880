"""Load what fits, report the rest.

Chapter: 3
Ranks: 1
Minutes: 12

You want to fine-tune, but the file was made by a model with another head.
`strict=False` forgives names that are missing or unknown, but you only learn which ones
if you look at what it returns. A wrong shape it does not forgive at all.

`ex3_2(model, saved)` copies each tensor of the state dict `saved` into the model if its
name **and** its shape fit, buffers included. It returns

```
{"missing": [...],      # names of the model that the file lacks
 "unexpected": [...],   # names of the file that the model lacks
 "shapes": {name: (shape in the file, shape in the model)}}  # tuples
```

in any order, with each name in only one of the three. The model's parameters must stay
the same objects, because the optimizer holds them, and keep their dtype. `saved` must
stay as it was.

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
from torch import nn


def net(classes=3):
    """A model with parameters, buffers, and a head."""
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


def pair(key, value):
    """Two shapes as tuples, whatever kind of sequence they were."""
    try:
        file, model = map(tuple, value)
    except (TypeError, ValueError):
        raise Wrong(
            f"the report's shapes[{key!r}] is {value!r:.60}; a pair is asked for: the "
            "shape in the file, and the shape in the model."
        ) from None
    return file, model


def check(answer, case):
    def ask(name, model, saved, **want):
        case(name)
        want = {"missing": [], "unexpected": [], "shapes": {}} | want
        before = {key: t.clone() for key, t in model.state_dict().items()}
        params, untouched = dict(model.named_parameters()), Untouched(saved=saved)
        file = {key: t.clone() for key, t in saved.items()}
        report = answer(model, saved)
        untouched()
        left_out = {*want["missing"], *want["shapes"]}
        for key, tensor in model.state_dict().items():
            if key in left_out:
                expect(
                    f"`{key}` of the model, which cannot be loaded,",
                    tensor,
                    before[key],
                )
                continue
            expect(f"`{key}` of the model", tensor, saved[key].to(tensor.dtype))
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
                raise Wrong(
                    f"`{key}` of the model is the file's own tensor: who trains the "
                    "model changes `saved`. Copy the numbers."
                )
        if isinstance(report, dict):
            for key in "missing", "unexpected":
                if isinstance(report.get(key), (list, tuple, set)):
                    report = report | {key: sorted(report[key])}
            if isinstance(shapes := report.get("shapes"), dict):
                report = report | {"shapes": {k: pair(k, v) for k, v in shapes.items()}}
        want |= {key: sorted(want[key]) for key in ("missing", "unexpected")}
        expect("the report", report, want)

    ask("everything fits", net(), net().state_dict())
    head = {"2.weight": ((7, 5), (3, 5)), "2.bias": ((7,), (3,))}
    ask("another head", net(), net(7).state_dict(), shapes=head)
    saved = net().state_dict()
    saved["2.bias"] = torch.ones(1)
    shapes = {"2.bias": ((1,), (3,))}
    ask("a shape that would be broadcast", net(), saved, shapes=shapes)
    saved = net().state_dict()
    saved["2.weight"], saved["1.weight"] = torch.ones(5, 3), torch.ones(1, 5)
    shapes = {"2.weight": ((5, 3), (3, 5)), "1.weight": ((1, 5), (5,))}
    ask("as many numbers in another shape", net(), saved, shapes=shapes)
    saved = net().state_dict()
    saved["1.num_batches_tracked"] = torch.tensor([7])
    shapes = {"1.num_batches_tracked": ((1,), ())}
    ask("a vector of one for a number", net(), saved, shapes=shapes)
    saved = net().state_dict()
    del saved["0.bias"], saved["1.running_mean"]
    ask("missing names", net(), saved, missing=["0.bias", "1.running_mean"])
    saved = net().state_dict() | {"ema": torch.ones(2), "3.weight": torch.ones(1)}
    ask("unexpected names", net(), saved, unexpected=["ema", "3.weight"])
    saved = net().state_dict()
    saved["1.running_var"] += 3
    saved["1.num_batches_tracked"] += 41
    ask("buffers, one of integers", net(), saved)
    saved = {key: t.half() if t.ndim else t for key, t in net().state_dict().items()}
    ask("a file in half precision", net(), saved)
    saved = {
        "2.weight": torch.ones(2, 2),
        "1.bias": torch.ones(5),
        "old": torch.ones(1),
    }
    missing = [key for key in net().state_dict() if key not in saved]
    shapes = {"2.weight": ((2, 2), (3, 5))}
    ask("all of it", net(), saved, missing=missing, unexpected=["old"], shapes=shapes)


# %% right: copies by hand into the tensors of the state dict, which are the model's own
import torch


def ex3_2(model, saved):
    own, shapes = model.state_dict(), {}
    with torch.no_grad():
        for name in own.keys() & saved.keys():
            if own[name].shape == saved[name].shape:
                own[name].copy_(saved[name])
            else:
                shapes[name] = saved[name].shape, own[name].shape
    names = {
        "missing": own.keys() - saved.keys(),
        "unexpected": saved.keys() - own.keys(),
    }
    return {key: list(found) for key, found in names.items()} | {"shapes": shapes}


# %% wrong: trusts strict=False with shapes
# = found = model.load_state_dict(saved, strict=False)
# = return {
# =     "missing": found.missing_keys,
# =     "unexpected": found.unexpected_keys,
# =     "shapes": {},
# = }
# %% wrong: copies whatever can be broadcast
# + import torch
# = own, shapes = model.state_dict(), {}
# = for name in own.keys() & saved.keys():
# =     try:
# =         own[name].copy_(saved[name])
# =     except RuntimeError:
# =         shapes[name] = tuple(saved[name].shape), tuple(own[name].shape)
# = names = {
# =     "missing": own.keys() - saved.keys(),
# =     "unexpected": saved.keys() - own.keys(),
# = }
# = return {key: list(found) for key, found in names.items()} | {"shapes": shapes}
# %% wrong: a wrong shape counts as missing, too
# = own = model.state_dict()
# = pairs = {n: (tuple(saved[n].shape), tuple(own[n].shape)) for n in own if n in saved}
# = shapes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
# = fit = {name: t for name, t in saved.items() if name not in shapes}
# = found = model.load_state_dict(fit, strict=False)
# = missing, unexpected = found.missing_keys, found.unexpected_keys
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
# %% wrong: parameters only
# + import torch
# = own, shapes, missing = dict(model.named_parameters()), {}, []
# = with torch.no_grad():
# =     for name, param in own.items():
# =         if name not in saved:
# =             missing.append(name)
# =         elif param.shape != saved[name].shape:
# =             shapes[name] = tuple(saved[name].shape), tuple(param.shape)
# =         else:
# =             param.copy_(saved[name])
# = known = model.state_dict()
# = unexpected = [name for name in saved if name not in known]
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
# %% wrong: assign=True puts the file's tensors in place of the parameters
# - model.load_state_dict(fit, strict=False)
# + model.load_state_dict(fit, strict=False, assign=True)
# %% wrong: takes what does not fit out of the file itself
# = own = model.state_dict()
# = missing = [name for name in own if name not in saved]
# = unexpected, shapes = [name for name in saved if name not in own], {}
# = for name in list(saved):
# =     if name in own and saved[name].shape != own[name].shape:
# =         shapes[name] = tuple(saved.pop(name).shape), tuple(own[name].shape)
# = model.load_state_dict(saved, strict=False)
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
# %% wrong: the parameters stay, but share the file's memory
# - own = model.state_dict()
# + own = dict(model.named_parameters()) | dict(model.named_buffers())
# - fit = {name: saved[name] for name in both if name not in shapes}
# - model.load_state_dict(fit, strict=False)
# + for name in both:
# +     if name not in shapes:
# +         own[name].data = saved[name].to(own[name].dtype)
# %% wrong: compares numbers of elements, not shapes
# = own, shapes = model.state_dict(), {}
# = for name in own.keys() & saved.keys():
# =     if saved[name].numel() == own[name].numel():
# =         own[name].copy_(saved[name].view_as(own[name]))
# =     else:
# =         shapes[name] = tuple(saved[name].shape), tuple(own[name].shape)
# = missing, unexpected = own.keys() - saved.keys(), saved.keys() - own.keys()
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
# %% wrong: lets load_state_dict try, which takes a vector of one for a number
# = own, shapes = model.state_dict(), {}
# = for name in own.keys() & saved.keys():
# =     try:
# =         model.load_state_dict({name: saved[name]}, strict=False)
# =     except RuntimeError:
# =         shapes[name] = tuple(saved[name].shape), tuple(own[name].shape)
# = missing, unexpected = own.keys() - saved.keys(), saved.keys() - own.keys()
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
# %% wrong: reports one shape where two are asked for
# = own = model.state_dict()
# = both = own.keys() & saved.keys()
# = other = [name for name in both if saved[name].shape != own[name].shape]
# = fit = {name: saved[name] for name in both if name not in other}
# = model.load_state_dict(fit, strict=False)
# = missing, unexpected = own.keys() - saved.keys(), saved.keys() - own.keys()
# = shapes = {name: tuple(saved[name].shape) for name in other}
# = return {"missing": missing, "unexpected": unexpected, "shapes": shapes}
