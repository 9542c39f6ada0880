"""Write the plain state dict of a file to another file."""

from contextlib import suppress
from pathlib import Path

from allranks.checkpoint.inspect import memory, table
from allranks.checkpoint.keys import MOST, find_model, plain
from allranks.checkpoint.reading import read
from allranks.checkpoint.refusals import Refusal, clean
from allranks.checkpoint.writing import write


def convert(
    file: Path,
    out: Path,
    entry: str | None = None,
    most: int = MOST,
    force: bool = False,
) -> list[str]:
    """Write the plain state dict of a file to another file."""
    state = read(file)
    with suppress(OSError):  # for a name that no file can have
        if out.exists() and out.samefile(file):
            raise Refusal("IN is OUT: name another, the rest of IN would go")
    name, model = find_model(state, entry)
    new, copies = plain(model, most), {}
    for key, value in new.items():  # a view would save the whole storage
        at = memory(value)
        if at and value.nbytes < value.untyped_storage().nbytes():
            new[key] = copies.setdefault(at, value.detach().clone())
    write(new, out, force)
    lines = [f"{out}: {table(new)[0]}"]
    left = ", ".join(clean(key) for key in state if key != name)
    return [*lines, f"left out: {left}"] if name and left else lines
