"""One rank saves, all load.

Ranks: 3
Minutes: 12

Every rank has a model of its own. All of them need rank 0's weights, by way of a file.

`ex3_4(model, path)` is called on every rank. Afterwards each rank's model holds the
weights that rank 0's model had before the call, and the file at `path` holds them too.

- Only rank 0 writes, with `torch.save`.
- Disks are slow, and there may be an older file at `path`. So no rank may read too
  early.
- As soon as the function returns on **one** rank, this rank may call it again, with
  other weights and the same path. So no rank may read too late either.

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
