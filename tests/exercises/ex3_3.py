"""Answers to exercise 3.3 that the check must take or refuse."""


# %% right: into memory first, so that a failure has written nothing yet
def ex3_3(state, path):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    folder = os.path.dirname(path) or "."
    number, name = tempfile.mkstemp(dir=folder)
    os.write(number, buffer.getvalue())
    os.fsync(number)
    os.close(number)
    os.rename(name, path)


# %% right: the functions by their own names
# + from os import fsync, remove, replace
# + from torch import save
# ~ f"{path}.new" => path + "~"
# ~ torch.save => save
# ~ os.fsync => fsync
# - os.replace(new, path)
# ~ if os.path.exists(new): => remove(new)
# - os.remove(new)
#       raise
# + replace(new, path)
# %% wrong: writes over the old file
# = torch.save(state, path)
# %% wrong: the new file is in another folder
# ~ f"{path}.new" => tempfile.mkstemp()[1]
# %% wrong: no fsync
# -         os.fsync(file.fileno())
# %% wrong: fsync, but the bytes are still in Python's buffer
#   new = f"{path}.new"
# + buffer = io.BytesIO()
# + torch.save(state, buffer)
# - torch.save(state, file)
# ~ file.flush() => file.write(buffer.getvalue())
# %% wrong: leaves half a file behind when the disk is full
# -     if os.path.exists(new):
# -         os.remove(new)
# %% wrong: hides the failure from the caller
# -     raise
# %% wrong: removes the old file, then writes
# = if os.path.exists(path):
# =     os.remove(path)
# = torch.save(state, path)
# %% wrong: removes the old file before the new one has its name
# ~ os.replace… => if os.path.exists(path):
# +     os.remove(path)
# + os.rename(new, path)
# %% wrong: an unbuffered file, which loses what is beyond 2 GiB
# ~ "wb" => "wb", buffering=0
