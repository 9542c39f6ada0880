r"""Each layer's file is as large as the model: a view was saved.

class: checkpoint
symptom: slow
runs on: 1 rank
chapter: ch3_save_load
signature: AssertionError: a layer of 4000 bytes takes more than 16000

You see: files that are many times as large as the tensors in them: each layer's file is
as large as the model, or three numbers of a batch take what the batch takes. Loading
works, and gives the right numbers.

Cause: `torch.save` writes a tensor's whole storage, so that tensors that share one
still share it when they are loaded. A view shares the storage of the whole tensor.
Optimizers and wrappers that keep all weights in one flat buffer, as ZeRO and DDP's
buckets do, make each weight a view of that buffer. A state dict in one file holds the
buffer once; a file per layer holds it once per layer.

Cure: save a clone of each tensor that is a part of a larger one. Safetensors files hold
only the numbers of the view.

Next time: compare `tensor.untyped_storage().nbytes()` with `tensor.nbytes`.

Links: https://github.com/pytorch/pytorch/issues/1995 (ten of 100 million numbers, saved with all; expected)
https://github.com/pytorch/pytorch/issues/95278 (each chunk is as large as the whole)
https://github.com/pytorch/pytorch/issues/53419 (72 MB or 2.4 GB)
"""

# %% given
import os

flat = torch.zeros(8_000)  # the weights of eight layers in one buffer
layers = flat.split(1_000)

# %% broken
for number, layer in enumerate(layers):
    torch.save(layer, f"layer{number}.pt")
print(f"{len(layers)} files for {flat.nbytes} bytes")

# %% fixed
for number, layer in enumerate(layers):
    torch.save(layer.clone(), f"layer{number}.pt")
print(f"{len(layers)} files for {flat.nbytes} bytes")

# %% invariant: a file is about as large as its tensor
size, most = os.path.getsize("layer0.pt"), 4 * layers[0].nbytes
assert size < most, f"a layer of {layers[0].nbytes} bytes takes more than {most}"
