"""Answers to exercise 3.4 that the check must take or refuse."""

# %% right: rank 0 alone reads, too, and sends what it has read
# + from torch import load, save
# ~ torch.save => save
# ~ dist… => box = [load(path) if dist.get_rank() == 0 else None]
# + dist.broadcast_object_list(box, src=0)
# ~ torch.load(path) => box[0]
# - dist.barrier()  # all have read it
# %% right: saves into memory, writes the bytes itself, and imports names
from io import BytesIO
from pathlib import Path
from torch import load, save
from torch.distributed import barrier, get_rank


def ex3_4(model, path):
    if get_rank() == 0:
        buffer = BytesIO()
        save(model.state_dict(), buffer)
        Path(path).write_bytes(buffer.getvalue())
    barrier()
    model.load_state_dict(load(path))
    barrier()


# %% wrong: nobody waits
# - dist.barrier()  # the file is whole
# - dist.barrier()  # all have read it
# %% wrong: a barrier on rank 0 only
#     torch.save(model.state_dict(), path)
# +   dist.barrier()
# +   return
# - dist.barrier()  # the file is whole
# - dist.barrier()  # all have read it
# %% wrong: everybody saves
# + from torch import load, save
# = save(model.state_dict(), path)
# = dist.barrier()
# = model.load_state_dict(load(path))
# = dist.barrier()
# %% wrong: waits until there is a file
# ~ (), path => (), path + "~"
# + os.replace(path + "~", path)
# ~ dist… => while not os.path.exists(path):
# +     time.sleep(0.01)
# - dist.barrier()  # all have read it
# %% wrong: one barrier, so that a slow reader gets the next file
# + from torch import load, save
# ~ torch.save => save
# - model.load_state_dict(torch.load(path))
# ~ dist.barrier()  # all have read it => model.load_state_dict(load(path))
# %% wrong: rank 0 is done when it has saved, and the others wait for it
#   torch.save(model.state_dict(), path)
# + return
# %% wrong: sends the weights and writes no file
# = box = [model.state_dict()]
# = dist.broadcast_object_list(box, src=0)
# = model.load_state_dict(box[0])
# %% wrong: the last rank saves its own
# ~ == 0 => == dist.get_world_size() - 1
# %% wrong: saves the model itself, with its class
# ~ model.state_dict() => model
# ~ (path) => (path, weights_only=False).state_dict()
