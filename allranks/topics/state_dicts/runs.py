"""Wrap, save, load and repair on live ranks, as ``sums`` describes it."""

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from allranks.topics.state_dicts import sums


class Net(nn.Module):
    """A model of two layers, and so of two keys."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.head(self.hidden(x).relu())


def wrappers() -> dict[str, Callable]:
    """Return torch's wrappers by the names that ``sums`` gives them."""
    from torch.distributed.fsdp import fully_shard  # slow to import

    return {
        "DDP": nn.parallel.DistributedDataParallel,
        "compile": lambda net: torch.compile(net, backend="eager"),  # no compiler
        "DataParallel": nn.DataParallel,
        "FSDP2": fully_shard,
    }


def wrap(order: Sequence[str], seed: int) -> nn.Module:
    """Create a net, and wrap it from the inside out."""
    torch.manual_seed(seed)
    net = Net()
    for wrapper in order:
        net = wrappers()[wrapper](net)
    return net


def weights(net: nn.Module) -> list[torch.Tensor]:
    """Return copies of a model's whole tensors, whatever wraps or shards them."""
    found = []
    for value in net.state_dict().values():  # sharded at any time, unlike parameters()
        found.append(value.full_tensor() if hasattr(value, "full_tensor") else value)
    return [tensor.clone() for tensor in found]


def execute(program: str, net: nn.Module) -> str:
    """Run a program as a rank's script would, and return torch's answer or error."""
    space = {"torch": torch, "dist": dist, "net": net, "rank": dist.get_rank()}
    *lines, last = program.rsplit("\n", 1)
    loads = last.startswith(("net.", "set_model_state_dict("))
    lines += [f"answer = {last}" if loads else last]
    try:
        exec("\n".join(lines), space)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return repr(space.get("answer"))


def load(program: str, net: nn.Module, aim: Sequence[torch.Tensor]) -> tuple[str, int]:
    """Zero the weights and run a program that loads, on all ranks.

    Returns:
        What torch answered, and how many tensors are equal to those of ``aim``.
    """
    for value in net.state_dict().values():
        value.zero_()
    text = execute(program, net)
    pairs = zip(weights(net), aim, strict=True)
    return text, sum(1 for a, b in pairs if torch.equal(a, b))


def save(program: str, net: nn.Module) -> None:
    """Run a program that saves, on all ranks.

    The barriers keep the ranks from writing while one still reads, and from reading
    before all have written.
    """
    dist.barrier()
    execute(program, net)
    dist.barrier()


def run(saved: Sequence[str], loaded: Sequence[str], strict: bool) -> dict:
    """Save and load as shown, then in both ways that do it right, on a live rank.

    Args:
        saved, loaded: orders of wrappers, from the inside out.
        strict: the argument of ``load_state_dict``.
    Returns:
        ``text``, torch's answer; ``num``, the number of tensors that it loaded;
        ``keys`` of both sides; ``repaired``, for each of the ways, whether all tensors
        and the outputs are equal.
    """
    described = [sums.describe(order) for order in (saved, loaded)]
    programs = sums.programs(*described, strict)
    with shared_folder() as folder, contextlib.chdir(folder):
        writer, reader = wrap(saved, seed=0), wrap(loaded, seed=1)
        aim, x, repaired = weights(writer), torch.ones(1, 4), []
        save(programs["save"], writer)
        text, num = load(programs["load"], reader, aim)
        for way in "repair", "load_plain":
            if way == "load_plain":
                save(programs["save_plain"], writer)
            right = load(programs[way], reader, aim)[1] == len(aim)
            repaired.append(right and torch.equal(writer(x), reader(x)))
        keys = [list(net.state_dict()) for net in (writer, reader)]
    return {"text": text, "num": num, "keys": keys, "repaired": repaired}


class shared_folder:
    """A folder that all ranks know; rank 0 creates it, and removes it at the end."""

    def __enter__(self) -> Path:
        self.made = tempfile.TemporaryDirectory() if dist.get_rank() == 0 else None
        box = [self.made and self.made.name]
        dist.broadcast_object_list(box)
        return Path(box[0])

    def __exit__(self, *error: object) -> None:
        dist.barrier()
        if self.made:
            self.made.cleanup()
