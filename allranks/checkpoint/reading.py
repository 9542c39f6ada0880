"""Load what torch.save wrote without running code from it, or say what the file is."""

import re
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from allranks.checkpoint.refusals import Refusal, clean

FOLDER = "a folder; a distributed checkpoint? Try torch's dcp_to_torch_save"
SAFE = "a safetensors file, which torch.load does not read; it runs no code"
SCRIPT = "a program of TorchScript: torch.jit.load reads it, and state_dict()"
TRUST = (
    "only if you trust it, load it with weights_only=False (or allow these by "
    "add_safe_globals), and save its state_dict() instead"
)


def read(path: Path) -> Any:
    """Load a file onto the CPU, by weights_only, which runs no code from it.

    Raises:
        Refusal: if it is something else, would take too much memory, or is damaged
            where torch does not check it.
        Exception: whatever torch.load raises for a damaged file.
    """
    if torch.__version__ < "2.10":  # CVE-2025-32434, CVE-2026-24747
        raise Refusal(f"torch {torch.__version__} is not safe; 2.10 is")
    if not path.is_file():  # a pipe could make us wait for ever
        raise Refusal(FOLDER if path.is_dir() else "no such regular file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(9)
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < size:
        raise Refusal(SAFE)
    if head[:4] == b"PK\3\4":
        look_for_damage(path, size)
    with warnings.catch_warnings(action="ignore"):  # about damaged files
        try:
            return torch.load(path, "cpu", weights_only=True)
        except Exception as error:
            if "TorchScript archives" in str(error):
                raise Refusal(SCRIPT) from None
            if held := beside_weights(path, str(error)):
                raise Refusal(held) from None
            raise  # it is damaged, or something else


def look_for_damage(path: Path, size: int) -> None:
    """Check an archive's checksums and sizes, which torch.load does not.

    Raises:
        Refusal: if it is damaged, or would take more memory than it should.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size:
            raise Refusal("it would unpack to more than it holds")
        if any(e.CRC for e in entries) and (damaged := archive.testzip()):
            raise Refusal(f"damaged: checksum of {damaged} is wrong")
        for entry in entries:  # weights_only allows bytearray, of any size
            entry.CRC = None  # it has been compared above, if there is one
            pickled = entry.filename.lower().endswith("data.pkl")
            if pickled and b"bytearray\n" in archive.read(entry):
                raise Refusal("its pickle makes a bytearray, of any size")


def beside_weights(path: Path, error: str) -> str:
    """Name what a file holds that weights_only does not load; "" if it holds none."""
    first = re.search(r"GLOBAL (\S+) (was not|whose)", error)
    if first is None:
        return ""
    if first[2] == "whose":  # of a module such as os, which no model needs
        return f"it calls {clean(first[1], 60)}, no model does: do not load it"
    held = set()
    with suppress(Exception):  # cannot list a file from before torch 1.6
        ask = torch.serialization.get_unsafe_globals_in_checkpoint
        held = {g for g in ask(path) if not g.startswith("builtins.")}
    names = [first[1], *sorted(held - {first[1]})]
    names = [clean(name, 60) for name in names]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"holds more than weights, {', '.join(names[:2])}{more}: {TRUST}"
