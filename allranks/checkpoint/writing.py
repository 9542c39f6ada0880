"""Write a file that gets its name only once all of it is on the disk."""

import os
from pathlib import Path

import torch

from allranks.checkpoint.refusals import Refusal, clean


def write(state: dict, path: Path, force: bool = False) -> None:
    """Save a state under a free name, or with force in place of a file.

    Args:
        state: what to save.
        path: the name of the file.
        force: replace a file that has this name.
    Raises:
        Refusal: if the name is taken, or the file cannot be written.
    """
    if os.path.lexists(path) and not (force and path.is_file()):
        way = "--force replaces it" if path.is_file() else "name another"
        raise Refusal(f"{clean(str(path))} exists: {way}")
    try:
        write_new(state, path.resolve(), force)
    except (OSError, RuntimeError) as error:
        why = error.__context__ or error  # torch hides "No space left"
        why = getattr(why, "strerror", None) or why
        name = clean(str(path), 150)
        raise Refusal(f"cannot write {name} ({why})") from None


def write_new(state: dict, path: Path, force: bool) -> None:
    """Write to a file without a name (on Linux), which then gets its name."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:  # on Linux it has no name meanwhile, so a killed run leaves none
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        file, source = os.fdopen(fd, "wb"), f"/proc/self/fd/{fd}"
    except (AttributeError, OSError):
        file, source = open(new, "xb"), None  # noqa: SIM115
    try:
        with file:
            torch.save(state, file)
            file.flush()
            os.fsync(file)
            if source:
                os.link(source, new, src_dir_fd=fd)
        (os.replace if force else os.link)(new, path)  # link: only if free
    finally:
        new.unlink(missing_ok=True)
