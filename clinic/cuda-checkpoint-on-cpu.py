r"""Attempting to deserialize object on a CUDA device, without a GPU.

class: checkpoint
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: RuntimeError: Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False

You see: `Attempting to deserialize object on a CUDA device` from `torch.load`. If there
are only fewer GPUs than before, it ends differently:
`on CUDA device 3 but torch.cuda.device_count() is 1`.

Cause: a checkpoint remembers the device of each tensor, and `torch.load` puts the
tensor back there. (The file here was written on a CPU, with the label that a GPU's
would have.)

Cure: always load with `map_location="cpu"`, and then move the model where it belongs.
In parallel training that also keeps all ranks off GPU 0.

Next time: if the machine does have a GPU, find out why torch does not see it:
`python -c "import torch; print(torch.version.cuda, torch.cuda.is_available())"`.

Links: https://github.com/hkchengrex/Cutie/issues/37 (the message, on a computer without a GPU)
https://github.com/Sujit-O/pykg2vec/issues/223 (trained on a GPU, used on a CPU)
"""

# %% given
from torch.serialization import register_package

register_package(0, lambda storage: "cuda:0", lambda storage, place: None)
torch.save({"weight": torch.ones(2)}, "last.pt")  # as on a machine with a GPU

# %% broken
checkpoint = torch.load("last.pt")
print(checkpoint)

# %% fixed
checkpoint = torch.load("last.pt", map_location="cpu")
print(checkpoint)

# %% signs
# Attempting to deserialize object on
# please use torch\.load to map your storages
# please use torch\.load with map_location
