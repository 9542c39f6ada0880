"""Write the plain state dict of a file to another file."""

from contextlib import suppress
from pathlib import Path

from allranks.checkpoint.inspect import incomplete, local, memory, table
from allranks.checkpoint.keys import MOST, below, find_model, plain, weights
from allranks.checkpoint.reading import read
from allranks.checkpoint.refusals import Refusal, clean
from allranks.checkpoint.writing import write


def convert(
    file: Path,
    out: Path,
    entry: str | None = None,
    most: int = MOST,
    prefix: str = "",
    force: bool = False,
) -> list[str]:
    """Write the plain state dict of a file to another file."""
    state = read(file)
    with suppress(OSError):  # for a name that no file can have
        if out.exists() and out.samefile(file):
            raise Refusal("IN is OUT: name another, the rest of IN would go")
    name, model = find_model(state, entry)
    if why := incomplete(model, state):
        raise Refusal(why)
    new, copies = below(plain(weights(model), most), prefix), {}
    for key, value in new.items():  # a view would save the whole storage
        new[key] = value = local(value)
        at = memory(value)
        if at and value.nbytes < value.untyped_storage().nbytes():
            new[key] = copies.setdefault(at, value.detach().clone())
    write(new, out, force)
    lines = [f"{out}: {table(new)[0]}"]
    left = [key for key in state if key != name] if name else []
    left += [key for key in model if key not in weights(model)]
    lines += [f"not copied: {', '.join(map(clean, left))}"] if left else []
    if cut := len(weights(model)) - len(new):
        lines.append(f"left out: {cut} entries that do not begin with {clean(prefix)}")
    return lines
