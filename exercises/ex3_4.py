"""One rank saves, all load.

Ranks: 3
Minutes: 12

Every rank has a model of its own, and all of them are to get rank 0's weights by way of
a file.

`ex3_4(model, path)` is called on every rank. Afterwards the model of each rank holds
the weights that rank 0's model had before the call, and `path` is a file that holds
them.

- Only rank 0 writes, with `torch.save`.
- Disks are slow, and there may be an older file at `path`, so no rank may read too
  early.
- As soon as the function returns on **one** rank, this rank may call it again, with
  other weights and the same path, so no rank may read too late either.

Hint 1: How does a rank know that the file is complete? A file exists before it is.
Hint 2: `dist.barrier()` returns when all ranks have called it. Between which two steps
    must all ranks meet? And is there a second such place?
Hint 3: Save (rank 0), barrier, load (all), barrier. Neither barrier belongs in the
    `if`.
"""


# %% solution
def ex3_4(model, path):
    """Give every rank the weights of rank 0, through a file."""
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()  # the file is whole
    model.load_state_dict(torch.load(path))
    dist.barrier()  # all have read it


# %% check
SLOW = {"save": 0.1, "load": 0.0}  # seconds, in the case that is tried


def check(answer, case):
    saves = []

    def slow_save(obj, f, *args, **kwargs):
        if not isinstance(f, io.BytesIO):  # so torch pickles a tensor
            saves.append(rank)
            time.sleep(SLOW["save"])

    def slow_load(f, *args, **kwargs):
        if rank == world_size - 1 and not isinstance(f, io.BytesIO):
            time.sleep(SLOW["load"])

    load = torch.load
    spy(torch, "save", slow_save)
    spy(torch, "load", slow_load)
    case("no file yet")
    model = nn.Linear(3, 2)  # another one on each rank
    want = from_rank_0(model)
    answer(model, "model.pt")
    writers = sorted({r for found in everyone(saves) for r in found})
    if {*writers} - {0}:
        who = f"ranks {writers}" if len(writers) > 1 else f"rank {writers[0]}"
        raise Wrong(f"{who} called torch.save; only rank 0 writes the file.")
    same(model, want, "the model", want, "it should be")
    if not os.path.exists("model.pt"):
        raise Wrong("the model has its weights, but there is no file at `path`.")
    try:
        file = load("model.pt")
    except Exception as error:
        why = ": it holds a pickled object. Save model.state_dict()"
        why = why if "Unsupported global" in str(error) else ""
        raise Wrong(f"torch.load(path) refuses the file{why}.") from None
    expect("the file", file, want)
    case("a file from before, on a slow disk")
    SLOW["save"] = 0.25
    before, model = want, nn.Linear(3, 2)
    want = from_rank_0(model)
    answer(model, "model.pt")
    same(model, want, "the model", before, "the file held before this call")
    case("two calls in a row, with a slow reader")
    SLOW.update(save=0.0, load=0.4)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    wants = from_rank_0(first), from_rank_0(second)
    answer(first, "model.pt")
    answer(second, "model.pt")
    when = "rank 0 saved in the second call"
    same(first, wants[0], "the model of the first call", wants[1], when)
    same(second, wants[1], "the model of the second call", wants[0], "the first saved")
    dist.barrier()
    expect("the file", load("model.pt"), wants[1])


def from_rank_0(model):
    """Return what rank 0's model holds; all begin at the same time."""
    want = everyone({key: t.clone() for key, t in model.state_dict().items()})[0]
    dist.barrier()
    return want


def same(model, want, what, other, when):
    """Every rank must hold rank 0's weights; `other` are those that are known, too."""
    for key, value in want.items():
        mistake = {f"This is what {when}.": other[key]}
        compare(f"`{key}` of {what}", model.state_dict()[key], value, mistake)


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
