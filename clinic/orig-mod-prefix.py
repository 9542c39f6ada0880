r"""Missing key(s) that differ only by `_orig_mod.`.

class: checkpoint
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: RuntimeError: Error\(s\) in loading state_dict for Linear:\n.*Missing key.*\n.*"_orig_mod\.weight"

You see: `Missing key(s)` and `Unexpected key(s)` that differ only by `_orig_mod.`; or
by both prefixes, `_orig_mod.module.` or `module._orig_mod.`.

Cause: `torch.compile(model)` returns a wrapper that holds the model as `_orig_mod`. It
shares the parameters, and all keys of its state dict have the prefix. DDP adds its own
prefix, outside or inside, depending on the order in which you wrapped.

Cure: keep a name for the plain model and save that one's state dict: it has the same
tensors. Or compile in place with `model.compile()`, which adds no wrapper.

Next time: print the first key of the file. Each prefix in it is a wrapper, from the
outside in.

Links: https://github.com/karpathy/nanoGPT/issues/325 (the prefix stops a resumed training)
https://github.com/mlfoundations/open_clip/pull/639 (the cure: save the original model)
https://github.com/huggingface/pytorch-image-models/pull/2003 (the message in full; the prefix is stripped)
"""

# %% given
from torch import nn

model = nn.Linear(2, 2)
compiled = torch.compile(model, backend="eager")

# %% broken
torch.save(compiled.state_dict(), "model.pt")
model = nn.Linear(2, 2)
print(model.load_state_dict(torch.load("model.pt")))

# %% fixed
torch.save(model.state_dict(), "model.pt")
model = nn.Linear(2, 2)
print(model.load_state_dict(torch.load("model.pt")))

# %% signs
# state_dict: "?(?:[\w.]+\.)?_orig_mod\.
# keys: _orig_mod\.
# maybe: (?:"|KeyError: \')(?:[\w.]+\.)?_orig_mod\.[\w.]+["\']
# maybe: prefix\W{0,3}_orig_mod|_orig_mod\W{1,4}prefix
