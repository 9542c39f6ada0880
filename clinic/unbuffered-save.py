r"""A checkpoint over 2 GiB is cut off, without an error.

class: checkpoint
symptom: silent
runs on: one process
chapter: ch3_save_load
signature: AssertionError: the file has \d+ bytes, the weights alone 400000
beyond: The weights in memory are right. Only the file is too short, and the guard does not read files.

You see: nothing, until the day you need the file: `PytorchStreamReader failed reading
zip archive: not a ZIP archive`, or `failed finding central directory`. The file has
2,147,48x,xxx bytes, a little more than 2 GiB, however large the model is.

Cause: a single write may be short: the system call returns how many bytes it took, and
Linux takes at most 2,147,479,552 (0x7ffff000) at once. Python's buffered files repeat
the call until all are written, but a raw one, `open(..., buffering=0)` or `io.FileIO`,
only returns the count, and torch does not look at it. (Here the raw file takes 4 KiB at
once, since writing 2 GiB would take too long. Torch meets the same short count.)

Cure: leave the buffer on, and `flush` before `os.fsync`. `torch.save(state, path)` also
writes all of it, except that up to PyTorch 2.12 it used a raw file itself if the path
had a letter outside ASCII.

Next time: compare the file's size with the bytes of the state, before the rename that
throws the last good file away.

Links: https://github.com/pytorch/pytorch/issues/185098 (torch.save stops at 2,147,485,224 bytes for a path that is not ASCII)
https://github.com/proxystore/proxystore/issues/704 (every model arrives with 2.14 GB)
"""

# %% given
import io
import os


class Disk(io.FileIO):
    def write(self, data):  # as the system does above 2 GiB, but at 4 KiB
        return super().write(memoryview(data).cast("B")[:4096])


state = {"weight": torch.ones(100_000)}

# %% broken
with Disk("last.pt", "w") as file:  # as open("last.pt", "wb", buffering=0)
    torch.save(state, file)
print("saved")

# %% fixed
with io.BufferedWriter(Disk("last.pt", "w")) as file:  # as open("last.pt", "wb")
    torch.save(state, file)
print("saved")

# %% invariant: the file has room for the weights
size, least = os.path.getsize("last.pt"), state["weight"].nbytes
assert size > least, f"the file has {size} bytes, the weights alone {least}"

# %% signs
# maybe: \b214748(?!36)[0-9]{4}\b
# maybe: \b2147479552\b|0x7ffff000
# with: torch\.save|torch\.load|PytorchStreamReader|checkpoint
