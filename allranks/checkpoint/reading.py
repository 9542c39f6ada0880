"""Load a checkpoint without running code from it, or say what the file is."""

import importlib
import logging
import re
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from allranks.checkpoint.formats import of_file, of_folder
from allranks.checkpoint.refusals import Refusal, clean

SHARDS = (
    "one rank's shards, {}, so no file of one rank holds the model: save with DCP, or "
    "get_model_state_dict with full_state_dict=True on rank 0"
)
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
        raise Refusal(of_folder(path) if path.is_dir() else "no such regular file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(9)
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < size:
        with safe_open(path, "pt") as file:  # maps the file: nothing is copied
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    if what := of_file(path):
        raise Refusal(what)
    if head[:4] == b"PK\3\4":
        look_for_damage(path, size)
    with warnings.catch_warnings(action="ignore"):  # about damaged files
        try:
            return load(path)
        except Exception as error:
            if held := beside_weights(path, str(error)):
                raise Refusal(held) from None
            raise  # it is damaged, or something else


def load(path: Path) -> Any:
    """Load a file by weights_only, which knows DTensor once its module is imported."""
    mesh = logging.getLogger("torch.distributed.device_mesh")
    mesh.setLevel(logging.ERROR)  # it misses the group, which nobody needs here
    try:
        return torch.load(path, "cpu", weights_only=True)
    except Exception as error:
        if "torch.distributed.tensor" not in str(error):  # torch 2.15 imports it
            raise
        importlib.import_module("torch.distributed.tensor")  # takes a second
        mesh.setLevel(logging.ERROR)
        return torch.load(path, "cpu", weights_only=True)


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
    if sharded := [n for n in names if n.endswith(".ShardedTensor")]:
        return SHARDS.format(sharded[0])
    names = [clean(name, 60) for name in names]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"holds more than weights, {', '.join(names[:2])}{more}: {TRUST}"
