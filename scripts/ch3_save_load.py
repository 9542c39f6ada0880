"""Chapter 3 - Save and load: a wrapped model's file, and a plain model.

Run it (no GPU needed):
    python scripts/ch3_save_load.py
"""

import argparse
import atexit
import os
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

if __name__ == "__main__":  # before the slow imports
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no traceback

import torch
from torch import nn
from torch.nn.modules import utils


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make the model and its optimizer, as each program has to."""
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
    gpu = torch.accelerator.current_accelerator(check_available=True)
    return net, torch.optim.Adam(net.to(gpu or "cpu").parameters(), lr=0.05)


def train(net: nn.Module, optimizer, num_steps: int) -> list[float]:
    """Learn which of ten numbers is the largest; return each loss."""
    dice = torch.Generator().manual_seed(0)
    x = torch.rand(500, 10, generator=dice).to(net[0].weight.device)
    losses = []
    for _ in range(num_steps):
        loss = nn.functional.cross_entropy(net(x), x.argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pack(net: nn.Module, optimizer, step: int) -> dict:
    """Collect what a later run needs to go on; one line is a mistake."""
    wrapped = nn.DataParallel(net)
    model = wrapped.state_dict()  # right: wrapped.module.state_dict()
    return {"model": model, "optim": optimizer.state_dict(), "step": step}


def save(path: str, state: dict) -> None:
    """Write a new file, then rename it: no crash can break the old one."""
    try:
        with open(f"{path}.new", "wb") as file:  # buffered: it writes it all
            torch.save(state, file)
            file.flush()
            os.fsync(file)
        os.replace(f"{path}.new", path)
    except BaseException as error:  # a full disk, Ctrl-C: leave nothing half
        with suppress(OSError):
            os.remove(f"{path}.new")
        for cause in error, error.__context__:
            if isinstance(cause, OSError):
                why = f"{path} is not saved: {cause.strerror}"
                refuse(f"{why}: make room or name another")
        raise


def save_in_place(path: str, state: dict) -> None:
    """Empty the old file, then write: a failure between loses both."""
    torch.save(state, path)


def read(path: str) -> dict:
    """Read a file that was written on any machine; run no code from it."""
    return torch.load(path, map_location="cpu", weights_only=True)


def load_as_it_is(net: nn.Module, optimizer, state: dict):
    """Raise: each name in the file begins with module., none in the net."""
    return net.load_state_dict(state["model"])


def load_not_strict(net: nn.Module, optimizer, state: dict):
    """Load nothing, and raise nothing: no name fits, and none has to."""
    return net.load_state_dict(state["model"], strict=False)


def load_weights(net: nn.Module, optimizer, state: dict):
    """Load the weights under their plain names; Adam starts anew."""
    utils.consume_prefix_in_state_dict_if_present(state["model"], "module.")
    return net.load_state_dict(state["model"])


def load_all(net: nn.Module, optimizer, state: dict):
    """Load the weights, and what Adam remembers of their gradients."""
    optimizer.load_state_dict(state["optim"])
    return load_weights(net, optimizer, state)


def go_on(path: str, load) -> str:
    """Load a file into a new model, train on, and say how it went."""
    net, optimizer = make()
    missing = load(net, optimizer, read(path)).missing_keys
    return f"{next_losses(net, optimizer)}, {len(missing)} tensors missing"


def next_losses(net: nn.Module, optimizer) -> str:
    """Train three more steps; return their losses as text."""
    return " ".join(f"{loss:.4f}" for loss in train(net, optimizer, 3))


def look(path: str) -> str:
    """Read a file, and list what is in it."""
    return ", ".join(read(path))


def attempt(title: str, call, *args) -> None:
    """Print what a call returns, or the first sentence of its error."""
    try:
        text = call(*args)
    except Exception as error:
        first = " ".join(str(error).split()).partition(". ")[0]
        text = f"{type(error).__name__}: {first}"
    put(f"{title}: {text}")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; refuse a file that exists or cannot be written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse
    name = "ch3_save_load.pt"
    parser.add_argument("--checkpoint", default=name, help="a file")
    parser.add_argument("--overwrite", action="store_true", help="replace it")
    args = parser.parse_args(argv)
    probe(args.checkpoint)
    if os.path.exists(args.checkpoint) and not args.overwrite:
        refuse(f"{args.checkpoint} exists: --overwrite it, or name another")
    return args


def main(argv: list[str] | None = None) -> None:
    """Save a wrapped model, load it in four ways; then risk the file."""
    path = (args := parse_args(argv)).checkpoint
    torch.manual_seed(0)
    net, optimizer = make()
    train(net, optimizer, 100)
    save(path, pack(net, optimizer, 100))
    state = read(path)
    put(f"saved after step 100: {', '.join(state['model'])}")
    put(f"never stopped: {next_losses(net, optimizer)}")
    for load in load_as_it_is, load_not_strict, load_weights, load_all:
        attempt(load.__name__, go_on, path, load)
    for flags in args, vars(args):
        save(path, state | {"flags": flags})
        attempt(f"flags in a {type(flags).__name__}", look, path)
    for way in save_in_place, save:
        way(path, state)
        with suppress(TypeError):  # an open file cannot be pickled
            way(path, state | {"log": sys.stdout})
        attempt(f"after {way.__name__} failed", look, path)


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def stop(*_) -> NoReturn:
    """End silently after Ctrl-C, as soon as save() has tidied up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # torchrun sends another
    sys.excepthook = lambda *_: None  # if torch turns the exit into an error
    atexit.register(os._exit, 130)  # no destructor of torch's may complain
    sys.exit(130)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def probe(path: str) -> None:
    """Refuse, before training, a path that save() could not write."""
    mine = f"{path}.{os.getpid()}"
    try:
        for name in path, f"{path}.new":
            if not path or os.path.exists(name) != os.path.isfile(name):
                raise OSError(0, "not the name of a file")
        os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
        os.remove(mine)
    except OSError as error:
        why = f"--checkpoint {path or repr(path)}: {error.strerror}"
        refuse(f"{why}: name a file that can be written")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    main()
