"""Tell what a file or a folder is by its name and first bytes, and what reads it.

Nothing is loaded here, so nothing runs. Each library names its files in its own way:
DCP and FSDP2 (torch.distributed.checkpoint), DeepSpeed's ZeRO, Hugging Face's
transformers and accelerate, peft.
"""

import json
import re
import tarfile
import zipfile
from pathlib import Path

from allranks.checkpoint.refusals import clean

DCP = (
    "a distributed checkpoint (DCP): python -m "
    "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE "
    "puts it into one file (it unpickles .metadata, so only if you trust it)"
)
ZERO = "zero_to_fp32.py, which DeepSpeed puts beside it, joins all ranks' files"
SCRIPT = "a program of TorchScript: torch.jit.load reads it, and state_dict()"
TAR = (
    "in torch's format of before 0.1.10, a tar archive, which weights_only does not "
    "load: only if you trust it, load it with weights_only=False and save it again"
)
FOLDER = "its folder is what to inspect"
FILES = [  # a pattern of names, and what such a file is
    (r"__\d+_\d+\.distcp$", f"one rank's part of a distributed checkpoint: {FOLDER}"),
    (r"\.metadata$", f"the index of a distributed checkpoint (DCP): {FOLDER}"),
    (r"_optim_states\.pt$", f"one rank's share of ZeRO's optimizer states: {ZERO}"),
]
STARTS = [  # the first bytes, and what such a file is
    (b"version https://git-lfs", "a pointer of Git LFS: git lfs pull brings the file"),
    (b"\x89HDF", "an HDF5 file, as Keras writes: h5py reads it"),
    (b"\x93NUMPY", "an array of NumPy: numpy.load reads it"),
    (b"GGUF", "a GGUF file of llama.cpp: the package gguf reads it"),
    (b"\x1f\x8b", "compressed with gzip: gunzip it first"),
    (b"<!DOCTYPE html", "a web page: the download did not get the file itself"),
    (b"<html", "a web page: the download did not get the file itself"),
]


def of_folder(path: Path) -> str:
    """Say what a folder is, and what reads it."""
    names = {file.name for file in path.iterdir()}

    def any_of(pattern: str) -> str:
        return min((name for name in names if re.search(pattern, name)), default="")

    # From the surest sign to the vaguest: DeepSpeed's and accelerate's folders hold
    # .bin files, too, so a model of Hugging Face comes late.
    if ".metadata" in names:
        return DCP
    if any_of(r"\.distcp$"):
        return "a distributed checkpoint without .metadata: saving it was cut short"
    if any_of(r"^zero_to_fp32\.py$|_model_states\.pt$|_optim_states\.pt$"):
        return f"a checkpoint of DeepSpeed: {ZERO}"
    if "latest" in names and (tag := any_of(r"^global_step\d+$")):
        return f"a checkpoint of DeepSpeed, whose files are in {clean(tag)}: {ZERO}"
    if "adapter_config.json" in names:
        file = clean(any_of(r"^adapter_model\.") or "adapter_model.safetensors")
        return f"an adapter of peft, without its base model: {file} holds its weights"
    if any_of(r"^random_states_\d+\.pkl$"):
        file = clean(any_of(r"^(model|pytorch_model)\.\w+$") or "model.safetensors")
        return f"what accelerate's save_state wrote: {file} holds the weights"
    if any_of(r"\.safetensors|^pytorch_model.*\.bin"):
        file = clean(any_of(r"\.safetensors$|^pytorch_model.*\.bin$") or "its parts")
        what = "a model in the form of Hugging Face"
        return f"{what}: from_pretrained(FOLDER) loads it; {file} can be inspected"
    if not names:
        return "an empty folder"
    some = ", ".join(clean(name, 40) for name in sorted(names)[:3])
    return f"a folder ({some}{', ...' if len(names) > 3 else ''}): name a file in it"


def of_file(path: Path) -> str:
    """Say what a file is if torch.load is not what reads it; else return ""."""
    for pattern, what in FILES:
        if re.search(pattern, path.name):
            return what
    with open(path, "rb") as file:
        head = file.read(512)
    for start, what in STARTS:
        if head.lower().startswith(start.lower()):
            return what
    if head[:4] == b"PK\3\4":
        return of_archive(path)
    if head[257:262] == b"ustar" or tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            old = "sys_info" in archive.getnames()[:9]
        return TAR if old else "a tar archive: unpack it, and inspect what it holds"
    if head[:1] in (b"{", b"["):
        return of_json(path)
    return of_text(path, head)


def of_archive(path: Path) -> str:
    """Say what a zip archive is if torch.save did not write it; else return ""."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return ""  # it may be cut; reading it says where
    tops = {name.partition("/")[2] for name in names}
    if "constants.pkl" in tops and any(name.startswith("code/") for name in tops):
        return SCRIPT
    if names and all(name.endswith(".npy") for name in names):
        return "arrays of NumPy (.npz): numpy.load reads it"
    return ""


def of_json(path: Path) -> str:
    """Say what a JSON file is, or return "" if it is none."""
    try:
        data = json.loads(path.read_text("utf8"))
    except (ValueError, RecursionError):
        return ""
    parts = data.get("weight_map") if isinstance(data, dict) else None
    if isinstance(parts, dict) and parts:
        num = len({*map(str, parts.values())})
        first = clean(min(map(str, parts.values())), 60)
        what = f"the index of a model in {num} file{'s'[: num > 1]} (Hugging Face)"
        return f"{what}: from_pretrained(FOLDER) loads all; {first} can be inspected"
    return "a JSON file, no checkpoint"


def of_text(path: Path, head: bytes) -> str:
    """Say what a short text is, such as DeepSpeed's latest; else return ""."""
    words = head.split()
    if path.name.startswith("latest") and len(words) == 1 and words[0].isascii():
        tag = clean(words[0].decode(), 60)
        return f"a text that names the newest checkpoint, {tag}: inspect that one"
    return ""


def of_state(state: dict) -> str:
    """Say what a loaded file without weights is, or return "" if it is unknown."""
    if {"state", "param_groups"} <= state.keys():
        slots = state["state"].values() if isinstance(state["state"], dict) else ()
        slots = [slot for slot in slots if isinstance(slot, dict)]
        names = sorted({clean(name) for slot in slots for name in slot})
        what = f" ({', '.join(names[:4])})" if names else ""
        return f"an optimizer's state, of {len(slots)} parameters{what}"
    if {"last_epoch", "_step_count"} <= state.keys():
        step = clean(state["last_epoch"])
        return f"a learning-rate scheduler's state, at step {step}"
    if {"scale", "growth_factor"} <= state.keys():
        return f"a GradScaler's state, with a scale of {clean(state['scale'])}"
    return ""
