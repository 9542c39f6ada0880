"""Chapter 3 - Save a file: no crash breaks it, and it loads without code.

Run it (no GPU needed):
    python scripts/ch3_save.py
"""

import job  # first, since importing torch takes seconds

import sys
from contextlib import suppress

import torch

from checkpoint import add_flags, keep, save


def save_in_place(path: str, state: dict) -> None:
    """Empty the old file, then write: a failure between loses both."""
    torch.save(state, path)


def look(path: str) -> str:
    """Return the names in a file, or the first sentence of torch's error."""
    try:
        return ", ".join(torch.load(path, "cpu", weights_only=True))
    except Exception as error:
        first = " ".join(str(error).split()).partition(". ")[0]
        return f"{type(error).__name__}: {first}"


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse a file that exists or cannot be written."""
    parser = job.Flags(__doc__)
    add_flags(parser, "ch3_save.pt")
    return keep(parser.parse_args(argv))


def main(argv: list[str] | None = None) -> None:
    """Let a save fail in two ways; then save the flags in two ways."""
    args = parse_args(argv)
    path, net = args.checkpoint, torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(net.parameters())
    state = {"model": net.state_dict(), "optim": optimizer.state_dict()}
    state["step"] = 100
    for way in save_in_place, save:
        way(path, state)
        with suppress(TypeError):  # an open file cannot be pickled
            way(path, state | {"log": sys.stdout})
        job.put(f"left by a failed {way.__name__}: {look(path)}")
    for flags in args, vars(args):
        save(path, state | {"flags": flags})
        job.put(f"flags as a {type(flags).__name__}: {look(path)}")


if __name__ == "__main__":
    main()
