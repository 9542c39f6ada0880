"""Answers to exercise 3.2 that the check must take or refuse."""


# %% right: copies by hand into the tensors of the state dict, which are the model's own
def ex3_2(model, saved):
    own, shapes = model.state_dict(), {}
    with torch.no_grad():
        for name in own.keys() & saved.keys():
            if own[name].shape == saved[name].shape:
                own[name].copy_(saved[name])
            else:
                shapes[name] = saved[name].shape, own[name].shape
    missing, unexpected = own.keys() - saved.keys(), saved.keys() - own.keys()
    return {"missing": [*missing], "unexpected": [*unexpected], "shapes": shapes}


# %% wrong: trusts strict=False with shapes
# ~ fit, => saved,
# %% wrong: copies whatever can be broadcast
# ~ name: pair… => n: (a, b) for n, (a, b) in shapes.items() if not {*a} <= {1, *b}}
# ~ model… => for name, tensor in fit.items():
# +     own[name].copy_(tensor)
# %% wrong: a wrong shape counts as missing, too
# ~ not in saved => not in fit
# %% wrong: parameters only
# ~ own = model.state_dict() => own = dict(model.named_parameters())
# ~ not in own => not in model.state_dict()
# %% wrong: assign=True puts the file's tensors in place of the parameters
# ~ False => False, assign=True
# %% wrong: takes what does not fit out of the file itself
#   unexpected = [name for name in saved if name not in own]
# + for name in shapes:
# +     del saved[name]
# %% wrong: the parameters stay, but share the file's memory
# ~ model.state_dict() => dict(model.named_parameters()) | dict(model.named_buffers())
# ~ model… => for name in fit:
# +     own[name].data = saved[name].to(own[name].dtype)
# %% wrong: compares numbers of elements, not shapes
# ~ pair[0] != pair[1] => own[name].numel() != saved[name].numel()
# ~ model… => for name, tensor in fit.items():
# +     own[name].copy_(tensor.view_as(own[name]))
# %% wrong: lets load_state_dict try, which takes a vector of one for a number
# ~ pair[0] != pair[1] => pair not in ((pair[0], pair[0]), ((1,), ()))
# %% wrong: reports one shape where two are asked for
#   unexpected = [name for name in saved if name not in own]
# + shapes = {name: pair[0] for name, pair in shapes.items()}
