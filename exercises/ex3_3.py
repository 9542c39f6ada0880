"""A save that no crash can break.

Ranks: 1
Minutes: 15

`torch.save(state, path)` first empties the old file and then writes the new one. If the
job dies in between, you have neither.

`ex3_3(state, path)` saves `state` with `torch.save`, in such a way that `path` is the
whole old file or the whole new one at every moment. (If there was no old file, `path`
may be missing.) The check looks at these points:

- A program that has opened the old file goes on reading the old bytes.
- The bytes are on the disk (`os.fsync`) before they get the name `path`. Otherwise a
  machine that loses power may remember the name but not the bytes.
- A rename works within one file system only. So what you write first belongs in the
  same folder as `path`. `path` may be relative.
- The state may be larger than 2 GiB, so leave `open`'s buffer on. Without a buffer, one
  write takes 2 GiB at most, and `torch.save` doesn't notice.
- If the save fails, because the disk is full for example, the caller gets the
  exception. Your function leaves no other file behind.

Hint 1: What if you write the file under another name first? Which call gives it the
    right name in one step, even if a file of this name exists?
Hint 2: Write, flush, `os.fsync`, close, `os.replace`. And if one of them raises, remove
    what you wrote and re-raise the exception.
Hint 3: `with open(f"{path}.new", "wb") as file:` `torch.save(state, file)`,
    `file.flush()`, `os.fsync(file.fileno())`; then `os.replace(f"{path}.new", path)`.
"""


# %% solution
def ex3_3(state, path):
    """Save `state` so that `path` is always a whole file, or none."""
    new = f"{path}.new"
    try:
        with open(new, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.remove(new)
        raise


# %% check
class FullDisk:
    """What cannot be written to the end."""

    def __reduce__(self):
        raise OSError(errno.ENOSPC, "No space left on device")


def check(answer, case):
    os.mkdir("runs")
    path = os.path.join("runs", "last.pt")
    new, old = {"weight": torch.randn(3), "step": 2}, {"weight": torch.zeros(3)}
    events = watch()
    case("the first file")
    answer(old | {"step": 1}, path)
    load(path, old | {"step": 1})
    case("over an old file")
    os.link(path, "reader")  # a second name for the old bytes
    events.clear()
    answer(new, path)
    load(path, new)
    if os.path.samefile("reader", path):
        raise Wrong("the old file was written over: who reads it gets half of each.")
    if ("rename", False) in events:
        raise Wrong("""the old file was gone when the new one got its name. A job that
            dies between has neither: os.replace puts one over the other in one
            step.""")
    case("power failure")
    if ("rename", True) not in events:
        raise Wrong("no rename: between removing and writing there is no file at all.")
    before = events[: events.index(("rename", True))]
    synced, size = [n for kind, n in before if kind == "sync"], os.path.getsize(path)
    if not synced:
        raise Wrong("""the name changed before os.fsync: the bytes may not be on the
            disk.""")
    if max(synced) < size:
        raise Wrong(f"""at your os.fsync, the file had {max(synced)} of {size} bytes:
            the rest was still in Python's buffer.""")
    case("a full disk, over an old file")
    fail(answer, path)
    load(path, new)
    case("a full disk, no old file")
    fail(answer, os.path.join("runs", "none.pt"))
    load(path, new)
    case("the current folder")
    answer(new, "here.pt")
    load("here.pt", new)


def watch():
    """Note each fsync, with the size, and each rename, with whether it replaces."""
    events, sync = [], os.fsync

    def look(obj, f, *args, **kwargs):
        if isinstance(f, io.RawIOBase):
            raise Wrong("""torch.save writes into an unbuffered file: of more than 2
                GiB, the rest would be lost without an exception. Leave buffering=0
                out.""")

    def note_sync(file):
        sync(file)
        number = file if isinstance(file, int) else file.fileno()
        events.append(("sync", os.fstat(number).st_size))

    def note_rename(source, target, **kwargs):
        folders = {os.path.dirname(os.path.abspath(p)) for p in (source, target)}
        if len(folders) > 1:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        events.append(("rename", os.path.exists(target)))

    patch(os, "fsync", note_sync)
    spy(torch, "save", look)
    spy(os, "replace rename", note_rename)
    return events


def load(path, want):
    """A file must hold what was saved, and nothing else be in the folder."""
    try:
        got = torch.load(path)
    except Exception as error:
        kind = type(error).__name__
        raise Wrong(f"the file cannot be read afterwards: {kind}.") from None
    expect("the file", got, want)
    if left := sorted({*os.listdir("runs")} - {"last.pt"}):
        raise Wrong(f"{left[0]} was left behind, beside last.pt.")


def fail(answer, path):
    """Save what cannot be saved; the caller must hear of it."""
    try:
        answer({"weight": torch.ones(100), "bad": FullDisk()}, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return
        raise
    raise Wrong("the save failed (no space left), and your function tells nobody.")
