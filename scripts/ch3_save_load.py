"""Chapter 3 - Load a file: a wrapped model saved it, a plain model loads it.

Run it (no GPU needed):
    python scripts/ch3_save_load.py
"""

import job  # first, since importing torch takes seconds

import torch
from torch import nn
from torch.nn.modules import utils

from checkpoint import add_flags, keep, save


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make the model and its optimizer, as each program has to."""
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
    gpu = torch.accelerator.current_accelerator(check_available=True)
    return net, torch.optim.Adam(net.to(gpu or "cpu").parameters(), lr=0.05)


def train(net: nn.Module, optimizer, num_steps: int) -> list[float]:
    """Learn which of ten numbers is the largest; return each loss."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(500, 10, generator=generator).to(net[0].weight.device)
    losses = []
    for _ in range(num_steps):
        loss = nn.functional.cross_entropy(net(x), x.argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pack(net: nn.Module, optimizer, step: int) -> dict:
    """Collect what a later run needs; the first entry is a mistake."""
    wrapped = nn.DataParallel(net)
    model = wrapped.state_dict()  # right: wrapped.module.state_dict()
    return {"model": model, "optim": optimizer.state_dict(), "step": step}


def read(path: str) -> dict:
    """Read a file that was written on any machine; run no code from it."""
    return torch.load(path, map_location="cpu", weights_only=True)


def load_as_it_is(net: nn.Module, optimizer, state: dict):
    """Raise: each name in the file begins with module., none in the net."""
    return net.load_state_dict(state["model"])


def load_not_strict(net: nn.Module, optimizer, state: dict):
    """Skip every name that does not fit: here, all of them."""
    return net.load_state_dict(state["model"], strict=False)


def load_weights(net: nn.Module, optimizer, state: dict):
    """Load the weights by their plain names, but not Adam's state."""
    utils.consume_prefix_in_state_dict_if_present(state["model"], "module.")
    return net.load_state_dict(state["model"])


def load_all(net: nn.Module, optimizer, state: dict):
    """Load the weights, and what Adam remembers of their gradients."""
    optimizer.load_state_dict(state["optim"])
    return load_weights(net, optimizer, state)


def go_on(path: str, load) -> str:
    """Load a file into a new model, train on, and say how it went."""
    net, optimizer = make()
    try:
        missing = load(net, optimizer, read(path)).missing_keys
    except RuntimeError as error:  # of whose many lines one is enough
        return f"RuntimeError: {' '.join(str(error).split()).split('. ')[0]}"
    return f"{next_losses(net, optimizer)}, {len(missing)} tensors missing"


def next_losses(net: nn.Module, optimizer) -> str:
    """Train three more steps; return their losses as text."""
    return " ".join(f"{loss:.4f}" for loss in train(net, optimizer, 3))


def parse_args(argv: list[str] | None = None):
    """Read the flags; refuse a file that exists or cannot be written."""
    parser = job.Flags(__doc__)
    add_flags(parser, "ch3_save_load.pt")
    return keep(parser.parse_args(argv))


def main(argv: list[str] | None = None) -> None:
    """Save a wrapped model; load it in four ways, and train on."""
    path = parse_args(argv).checkpoint
    torch.manual_seed(0)
    net, optimizer = make()
    train(net, optimizer, 100)
    save(path, pack(net, optimizer, 100))
    job.put(f"saved after step 100: {', '.join(read(path)['model'])}")
    job.put(f"never stopped: {next_losses(net, optimizer)}")
    for load in load_as_it_is, load_not_strict, load_weights, load_all:
        job.put(f"{load.__name__}: {go_on(path, load)}")


if __name__ == "__main__":
    main()
