r"""Weights only load failed: the checkpoint holds more than weights.

class: checkpoint
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: UnpicklingError: Weights only load failed

You see: after an update of torch, a file that used to load fails with
`UnpicklingError: Weights only load failed`. The last lines name the refused class.

Cause: a pickle can run any code while it is read, so since 2.6 `torch.load` unpickles
only tensors and plain containers. It refuses a namespace of arguments, a config object,
a numpy scalar or a whole module.

Cure: save plain values, such as `vars(args)`, a dict of floats or state dicts. For
files that you wrote yourself, allow the named class by
`torch.serialization.safe_globals([...])`. Pass `weights_only=False` only for a file
that you would also run as a script.

Next time: read the line with `Unsupported global`; it names what to convert or allow.

Links: https://github.com/speechbrain/speechbrain/issues/2856 (checkpoints refused since torch 2.6)
https://github.com/ltdrdata/ComfyUI-Impact-Subpack/issues/36 (the message in full, with the refused name)
"""

# %% given
from argparse import Namespace

args = Namespace(lr=0.1, epochs=3)

# %% broken
torch.save({"weight": torch.ones(2), "args": args}, "last.pt")
print(torch.load("last.pt"))

# %% fixed
torch.save({"weight": torch.ones(2), "args": vars(args)}, "last.pt")
print(torch.load("last.pt"))

# %% signs
# set to `?False`? will likely succeed|allowlist this global if you trust
# WeightsUnpickler error: Unsupported (?:global|operand|class)
# was not an allowed global by default|Unsupported global: GLOBAL
# Weights only load failed
# types accepted by default with weights_only
# Please use `?torch\.serialization\.add_safe_globals
