"""Chapter 3 - Save and load: look into a checkpoint, write its plain form.

Run it (no GPU needed):
    python scripts/ch3_save_load.py demo wrapped.pt
    python scripts/ch3_save_load.py inspect wrapped.pt
    python scripts/ch3_save_load.py convert wrapped.pt plain.pt
"""

import argparse
import os
import re
import sys
import warnings
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

try:
    import torch
    from torch import Tensor, nn
except KeyboardInterrupt:
    sys.exit(130)  # importing takes seconds: Ctrl-C falls into them

MODELS = "model", "model_state_dict", "state_dict"  # its usual names
FOLDER = "a folder; a distributed checkpoint? Try torch's dcp_to_torch_save"
SAFE = "a safetensors file, which torch.load does not read; it runs no code"
SCRIPT = "a program of TorchScript: torch.jit.load reads it, and state_dict()"
TRUST = "only if you trust it, load it with weights_only=False (or allow these"
TRUST += " by add_safe_globals), and save its state_dict() instead"


class Refusal(Exception):
    """What the reader of a refusal should know, in one sentence."""


def read(path: Path):
    """Load onto the CPU what torch.save wrote; weights_only runs no code."""
    if torch.__version__ < "2.10":  # CVE-2025-32434, CVE-2026-24747
        raise Refusal(f"torch {torch.__version__} is not safe; 2.10 is")
    if not path.is_file():  # nor wait for a pipe
        raise Refusal(FOLDER if path.is_dir() else "no such regular file")
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(9)
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < size:
        raise Refusal(SAFE)
    if head[:4] == b"PK\3\4":  # torch.load does not look for damage
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > size:
                raise Refusal("it would unpack to more than it holds")
            if any(e.CRC for e in entries) and (damaged := archive.testzip()):
                raise Refusal(f"damaged: checksum of {damaged} is wrong")
            for entry in entries:  # weights_only lets bytearray fill memory
                entry.CRC = None  # compared above, if there is one
                pkl = entry.filename.lower().endswith("data.pkl")
                if pkl and b"bytearray\n" in archive.read(entry):
                    raise Refusal("its pickle makes a bytearray, of any size")
    with warnings.catch_warnings(action="ignore"):  # of damaged files
        try:
            return torch.load(path, "cpu", weights_only=True)
        except Exception as error:
            if "TorchScript archives" in str(error):
                raise Refusal(SCRIPT) from None
            if held := beside_weights(path, str(error)):
                raise Refusal(held) from None
            raise  # it is damaged, or something else


def beside_weights(path: Path, error: str) -> str:
    """Say what a whole file holds that weights_only will not load, if so."""
    first = re.search(r"GLOBAL (\S+) (was not|whose)", error)
    if first is None:
        return ""
    if first[2] == "whose":  # of a module such as os: no model needs that
        return f"it calls {clean(first[1], 60)}, no model does: do not load it"
    held = set()
    with suppress(Exception):  # a file from before 1.6 is not listed
        ask = torch.serialization.get_unsafe_globals_in_checkpoint
        held = {g for g in ask(path) if not g.startswith("builtins.")}
    names = [first[1], *sorted(held - {first[1]})]
    names = [clean(name, 60) for name in names]
    more = f" and {len(names) - 2} more" * (len(names) > 2)
    return f"holds more than weights, {', '.join(names[:2])}{more}: {TRUST}"


def has_tensors(state) -> bool:
    """Whether it is like a state dict: names, tensors among the values."""
    named = isinstance(state, dict) and all(isinstance(k, str) for k in state)
    return named and any(isinstance(v, Tensor) for v in state.values())


def find_model(state, entry: str | None) -> tuple[str, dict]:
    """Find the state dict: its entry's name ("" if it is all), and itself."""
    state = state if isinstance(state, dict) else {}
    models = {k: v for k, v in state.items() if has_tensors(v)}
    known = [k for k in (MODELS if entry is None else [entry]) if k in models]
    if entry is None and not known:
        known = [""] if has_tensors(state) else list(models)
    if len(known) != 1:
        found = ", ".join(map(clean, models)) or "none"
        asked = "" if entry is None else f", not {clean(entry)!r}"
        why = f"found {found} for a state dict{asked}"
        raise Refusal(f"{why}; --entry names the one")
    return known[0], models.get(known[0], state)


def split(name: str) -> list[str]:
    """The parts of a key, without those that torch.compile put in."""
    return [part for part in name.split(".") if part != "_orig_mod"]


def plain(state: dict, most: int = 9) -> OrderedDict:
    """Copy a state dict, without what wrappers put before its names.

    _orig_mod (torch.compile) goes wherever it is: no model uses that name.
    A leading module (DataParallel, DDP) goes while every key has it, but not
    more than so often: a model may own a submodule of that name.
    """
    depth, parts = 0, [split(key) for key in state]
    while depth < most and all(p[depth:-1][:1] == ["module"] for p in parts):
        depth += 1
    new = OrderedDict()
    for part, value in zip(parts, state.values(), strict=True):
        new[".".join(part[depth:])] = value  # tied tensors stay tied
    if len(new) < len(state):
        raise Refusal("two of its keys differ in nothing but _orig_mod")
    new._metadata = OrderedDict()  # layers' versions, for load_state_dict
    for path, version in getattr(state, "_metadata", {}).items():
        new._metadata[".".join(split(path)[depth:])] = version
    return new


def write(state: dict, path: Path, force: bool = False) -> None:
    """Give the file its name once all of it is on the disk, not before."""
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
    try:  # on Linux it has no name meanwhile: if we are killed, it is gone
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


def memory(v) -> tuple | None:
    """Return what tied tensors have in common, and no other two."""
    if getattr(v, "layout", None) == torch.strided:
        return v.data_ptr() or id(v), v.dtype, v.shape, v.stride()


def table(state: dict) -> list[str]:
    """A line per entry: key, dtype, shape, and whose memory it shares."""
    lines, owners, num = [], {}, 0
    width = max(len(clean(key)) for key in state)
    for key, value in state.items():
        what = clean(value)
        if isinstance(value, Tensor):
            kind = "" if value.layout == torch.strided else f" {value.layout}"
            what = f"{value.dtype}{kind} {list(value.shape)}"
            owner = owners.setdefault(memory(value) or id(value), key)
            what += f", the memory of {clean(owner)}" * (owner != key)
            room = 1e99 if kind else value.untyped_storage().nbytes()
            num += min(value.numel(), room // value.itemsize) * (owner == key)
        lines.append(f"  {clean(key):{width}}  {what.replace('torch.', '')}")
    return [f"{num:,} numbers in {len(state)} entries", *lines]


def clean(value, most: int = 200) -> str:
    """Name what a file holds in one short line of printable ASCII."""
    if not isinstance(value, (str, bool, int, float)):
        value = type(value).__name__
    text = ascii(str(value))[1:-1]
    return text if len(text) < most else f"{text[: most - 3]}..."


def file_name(text: str) -> Path:
    """A path; an empty one is a variable that nobody set."""
    if not text:
        raise argparse.ArgumentTypeError("'' is no file: give its name")
    return Path(text)


def at_least_0(text: str) -> int:
    """How many prefixes may go."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return int(text)


def demo(args) -> list[str]:
    """Train a little, then save too much: wrappers' names get into it."""
    from sklearn.datasets import load_digits  # slow, and only needed here

    torch.manual_seed(0)
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        loss = nn.functional.cross_entropy(net(x.float() / 16), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wrapped = torch.compile(nn.DataParallel(net))
    state = {"model": wrapped.state_dict(), "optim": optimizer.state_dict()}
    write(state | {"epoch": 60}, args.file, args.force)
    return [f"{args.file}: loss={loss:.4f} after 60 epochs"]


def inspect(args) -> list[str]:
    """Show what is in a file, and what convert would change."""
    state = read(args.file)
    entry, model = find_model(state, args.entry)
    head, *rows = table(model)
    lines = [f"{args.file}, {args.file.stat().st_size / 1e6:.2f} MB: {head}"]
    lines += [f"  {clean(k)}: {clean(v)}" for k, v in state.items() if entry]
    lines += [f"the state dict{f' in {clean(entry)}' * bool(entry)}:", *rows]
    for name in "_orig_mod", "module":
        if num := sum(f".{name}." in f".{key}" for key in model):
            lines.append(f"{num} of {len(model)} keys contain {name}.")
    for old, new in zip(model, plain(model, args.most), strict=True):
        if old != new:
            return [*lines, f"convert turns {clean(old)} into {clean(new)}"]
    return [*lines, "convert leaves all keys as they are"]


def convert(args) -> list[str]:
    """Write the plain state dict of a file to another file."""
    state, out = read(args.file), args.out
    with suppress(OSError):  # of a name that no file can have
        if out.exists() and out.samefile(args.file):
            raise Refusal("IN is OUT: name another, the rest of IN would go")
    entry, model = find_model(state, args.entry)
    new, copies = plain(model, args.most), {}
    for key, v in new.items():  # a view would take all of its memory along
        if (at := memory(v)) and v.nbytes < v.untyped_storage().nbytes():
            new[key] = copies.setdefault(at, v.detach().clone())
    write(new, out, args.force)
    lines = [f"{args.out}: {table(new)[0]}"]
    left = ", ".join(clean(key) for key in state if key != entry)
    return [*lines, f"left out: {left}"] if entry and left else lines


def main(argv: list[str] | None = None) -> None:
    """Read the command line; refuse in one sentence, with exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for function in demo, inspect, convert:
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("file", type=file_name)
        if function is convert:
            command.add_argument("out", type=file_name)
        if function is not inspect:
            text = "replace a file"
            command.add_argument("--force", action="store_true", help=text)
        if function is not demo:
            command.add_argument("--entry", help="which state dict")
            text = "how many leading module. may go"
            how = {"type": at_least_0, "default": 9, "help": text}
            command.add_argument("--most", **how)
    args = parser.parse_args(argv)
    try:
        lines = args.function(args)
    except Exception as error:
        noise = r"(?s)^.*(Unpickler error:|load failed\.)\s*|[.\n][ \n].*"
        why = str(error)
        if not isinstance(error, Refusal):
            why = re.sub(noise, "", why)
            why = f"{type(error).__name__}: {why}".strip(": ")
            why = f"cannot be read; damaged, or no checkpoint? ({why})"
        name = clean(str(args.file))
        raise SystemExit(f"{name}: {clean(why, 400)}") from None
    print("\n".join(lines))


if __name__ == "__main__":
    code = 0
    try:
        main()
        print(end="", flush=True)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # nobody reads any more, as head after its lines
        code = 141
    except OSError as error:
        code = f"cannot print: {error}"
    if code:
        sys.stdout = None  # or the interpreter tries to write the rest again
        sys.exit(code)
