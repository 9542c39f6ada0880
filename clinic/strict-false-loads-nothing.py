r"""`strict=False` hides the error, and loads no weights.

class: checkpoint
symptom: silent
runs on: 1 rank
chapter: ch3_save_load
signature: AssertionError: 0 of 2 tensors were loaded
guard: the parameter weight \(and 1 more of 2\) is not what was saved

You see: nothing, and a loss that starts where a fresh model's does: the network "forgot
everything", or a pretrained one does not help.

Cause: `strict=False` skips each key that does not match. If all keys have a prefix,
`module.` or `_orig_mod.`, none matches: nothing is loaded, and there is no error. The
call only returns what it skipped, which is easy to overlook.

Cure: take the prefix off and load strictly. If some keys may be missing, check that
those, and no others, are in the returned `missing_keys` and `unexpected_keys`.

Next time: print what `load_state_dict` returns: `<All keys matched successfully>` is
what you want to read.

Links: https://github.com/pytorch/examples/issues/1029 (strict=False over prefixed keys gives a nonsense model)
https://github.com/pytorch/pytorch/issues/141256 (a wish for a report of what was skipped)
"""

# %% given
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

trained = nn.Linear(2, 2)
state = DistributedDataParallel(trained).state_dict()
model = nn.Linear(2, 2)

# %% broken
model.load_state_dict(state, strict=False)
print("loaded")

# %% fixed
consume_prefix_in_state_dict_if_present(state, "module.")
print(model.load_state_dict(state))

# %% invariant: the model has the weights that were trained
pairs = zip(model.parameters(), trained.parameters(), strict=True)
same = [torch.equal(a, b) for a, b in pairs]
assert all(same), f"{sum(same)} of {len(same)} tensors were loaded"

# %% guarded
from allranks.guard import Guard

mark = Guard(DistributedDataParallel(trained)).mark()
model.load_state_dict(state, strict=False)
Guard(model).resumed(mark)

# %% signs
# missing_keys=\['[^\]]+\], unexpected_keys=\['(?:module|_orig_mod)\.
# maybe: were not used when initializing .*: \['(?:module|_orig_mod)\.
