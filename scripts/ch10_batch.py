"""Chapter 10 - Larger batches: two rules for the rate, and what they save.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch10_batch.py
"""

import argparse
import itertools
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import NoReturn


def watch(parent: int) -> None:
    """End this rank when its launcher has died, even of SIGKILL.

    It asks once a second: prctl watches only one thread of the launcher's.
    """

    def look():
        while os.getppid() == parent:
            time.sleep(1)
        with suppress(OSError):
            os.write(2, b"ended: the launcher of this rank is gone\n")
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


if __name__ == "__main__":  # before the slow imports
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no traceback
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # started by torchrun
        watch(os.getppid())

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn import functional as F

BATCHES = 4, 16, 64, 256
FIRST = {"SGD": -5, "Adam": -9}  # of nine rates: 2^-5, 2^-4, ...


def setup(args: argparse.Namespace) -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    timeout = time_limit()
    sys.excepthook = brief
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            refuse(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    agree(args)
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write, so that two ranks' lines never merge."""
    put(f"[rank {dist.get_rank()}/{dist.get_world_size()}] {text}")


def read_digits(num: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return num handwritten digits."""
    x, y = (torch.as_tensor(a[:num]) for a in load_digits(return_X_y=True))
    return x.float().to(device) / 16, y.to(device)


def make_nets(num: int, seed: int, device) -> list[torch.Tensor]:
    """Return the weights of num equal nets, which are trained side by side."""
    draw = torch.Generator().manual_seed(seed)
    sizes = (1, 65, 32), (1, 33, 10)  # the last row of each is the bias
    ones = [torch.randn(s, generator=draw) / s[1] ** 0.5 for s in sizes]
    return [one.repeat(num, 1, 1).to(device) for one in ones]


def losses(weights: list[torch.Tensor], x, y) -> torch.Tensor:
    """Return each net's mean loss, (L,), on the same samples (B, 64)."""
    first, last = weights
    x = x.expand(len(first), -1, -1)
    h = torch.baddbmm(first[:, -1:], x, first[:, :-1])
    h = torch.baddbmm(last[:, -1:], h.relu(), last[:, :-1])  # (L, B, 10)
    each = F.cross_entropy(h.mT, y.expand(len(h), -1), reduction="none")
    return each.mean(dim=1)


def slopes(weights: list[torch.Tensor], data, size=0, draw=None) -> tuple:
    """Return each net's gradient, on all samples or on a batch of a size."""
    weights, mine = [w.detach().requires_grad_() for w in weights], slice(None)
    if draw:
        mine = torch.randint(len(data[0]), (size,), generator=draw)
    loss = losses(weights, *(part[mine] for part in data))
    return torch.autograd.grad(loss.sum(), weights)


def noise_scale(local: float, mean: float, size: int, num: int) -> tuple:
    """Solve |g|^2 = |G|^2 + tr(S) / B, known for size and num x size."""
    noise = (local - mean) * size * num / (num - 1)
    return noise, mean - noise / (size * num)


def measure_noise(weights, data, size: int, rounds: int, draw) -> tuple:
    """Measure tr(S), |G|^2 of one net, and how far |G|^2 may be off."""
    squares = torch.zeros(rounds, 2, device=data[0].device)
    for row in squares:
        found = slopes(weights, data, size, draw)
        local = torch.cat([g.flatten() for g in found])
        dist.all_reduce(mean := local.clone(), dist.ReduceOp.AVG)
        row.copy_(torch.stack([local.square().sum(), mean.square().sum()]))
    dist.all_reduce(squares, dist.ReduceOp.AVG)
    noise, signal = noise_scale(*squares.T, size, dist.get_world_size())
    return noise.mean(), signal.mean(), 2 * signal.std() / rounds**0.5


def train(args, data, kind: str, batch: int) -> torch.Tensor:
    """Return each rate's steps to the goal; inf if above 3 x the best's."""
    rates = 2.0 ** (FIRST[kind] + torch.arange(9, device=data[0].device))
    weights = make_nets(len(rates), args.seed, rates.device)
    draw = torch.Generator().manual_seed(args.seed + 1)
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    done, step = torch.full_like(rates, torch.inf), 0
    while step < min(args.steps, 3 * done.min()) and done.isinf().any():
        step += 1
        found = slopes(weights, data, batch, draw)
        for w, g, m, v in zip(weights, found, first, second, strict=True):
            if kind == "Adam":  # with betas of 0.9 and 0.99
                m.lerp_(g, 0.1), v.lerp_(g * g, 0.01)
                root = (v / (1 - 0.99**step)).sqrt() + 1e-8
                g = m / (1 - 0.9**step) / root
            w -= rates.view(-1, 1, 1) * g * min(1, step / args.warmup)
        if step % max(1, step // 20) == 0:  # look every 5 %
            done[(losses(weights, *data) < args.goal) & done.isinf()] = step
    return done


def numbers(defaults: dict, argv: list[str] | None) -> argparse.Namespace:
    """Read flags that are numbers; refuse impossible values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = refuse  # one sentence, not once per rank
    for flag, default in defaults.items():
        how = {"type": type(default), "default": default}
        parser.add_argument(flag, **how, help=f"default: {default}")
    return in_range(parser.parse_args(argv))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the flags; the --goal is a loss on all samples."""
    flags = {"--steps": 2000, "--samples": 1440, "--warmup": 1, "--seed": 0}
    return numbers(flags | {"--goal": 0.1}, argv)


def main() -> None:
    """Measure the noise scale, then try two rules for the learning rate."""
    args = parse_args()
    rank, world_size, device = setup(args)
    tell = say if rank == 0 else lambda _: None
    if world_size < 2:
        refuse("1 rank: comparing its gradient with the mean needs 2 at least")
    weights = make_nets(1, args.seed, device)
    data = read_digits(args.samples, device)
    draw = torch.Generator().manual_seed(args.seed + rank)
    for step in range(101):
        whole = slopes(weights, data)  # G itself: these are all samples
        if step in (0, 10, 30, 100):
            noise, signal, off = measure_noise(weights, data, 8, 200, draw)
            least, most = (signal - off).relu(), signal.relu() + off
            told = f"noise scale {noise / most:.0f} to {noise / least:.0f}"
            exact = noise / sum(g.square().sum() for g in whole)
            loss = losses(weights, *data).item()
            tell(f"{step=} {loss=:.2f}: {told}, by G itself {exact:.0f}")
        for w, g in zip(weights, whole, strict=True):
            w -= 0.5 * g  # a step of gradient descent on all samples
    tries = [*itertools.product(FIRST, BATCHES)]
    steps = torch.zeros(len(tries), 9, device=device)
    for place in range(rank, len(tries), world_size):  # a rank tries its share
        steps[place] = train(args, data, *tries[place])
    dist.all_reduce(steps)
    start = {}
    for (kind, batch), row in zip(tries, steps.tolist(), strict=True):
        best, up = row.index(min(row)), (batch // BATCHES[0]).bit_length() - 1
        first = start.setdefault(kind, best)  # the rules begin with this one
        found = {"best": best, "linear": first + up, "root": first + up // 2}
        for name, place in found.items():
            rate = f"{2.0 ** (FIRST[kind] + place):.3g}"
            needs = f"{row[place]:.0f}" if place < len(row) else "not tried"
            found[name] = f"{name} {rate} ({needs})"
        told = ", ".join(found.values())
        tell(f"{kind} {batch}: {told if min(row) < torch.inf else 'no best'}")
    dist.destroy_process_group()


# The rest stands in every script: a job that cannot go on ends in a sentence.
def refuse(why: str) -> NoReturn:
    """End all ranks with one sentence: all found the same fault."""
    started = "TORCHELASTIC_USE_AGENT_STORE" in os.environ  # by a launcher
    if started and os.environ.get("LOCAL_RANK") != "0":
        time.sleep(9)  # rank 0 says it; then the launcher ends this rank
    if started and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # or exit may abort
    raise SystemExit(why)


def put(line: str) -> None:
    """Print a line in one write; end with a sentence if stdout fails."""
    try:
        print(f"{line}\n", end="", flush=True)
    except OSError as error:  # a full disk, or `| head`, which left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # no second try at exit
        why = f"cannot print to stdout: {error.strerror}"
        refuse(f"{why}: ended")


def in_range(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse impossible numbers before anything is started."""
    most = {"seed": 2**32 - 1, "samples": 1440, "nproc_per_node": 64}
    most |= {"workers": 64, "numbers": 64, "width": 8192, "columns": 16384}
    for name, value in vars(args).items():
        flag, low = "--" + name.replace("_", "-"), int(name != "seed")
        high = most.get(name, 65536)
        if type(value) is int and not low <= value <= high:
            refuse(f"{flag} {value}: must be {low} to {high}")
        if type(value) is float and not 1e-30 <= value <= 1e30:
            refuse(f"{flag} {value}: must be 1e-30 to 1e+30")
    return args


def brief(kind, error, trace) -> None:
    """Print a traceback, or one line if another process was first to die."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or this may be interrupted
    why, both = "", (error, error.__context__)  # what it came of may tell it
    pipe = any(isinstance(e, ConnectionError | EOFError) for e in both)
    if pipe or any("DataLoader worker (pid" in str(e) for e in both):
        why = "a DataLoader worker was killed, often for want of memory"
    elif re.search("closed by peer|reset by peer|Broken pipe", str(error)):
        why = "its connection to another rank is closed; look there"
    if why:
        sys.stderr.write(f"[rank {os.environ['RANK']}] ended: {why}\n")
    else:
        sys.__excepthook__(kind, error, trace)


def time_limit() -> timedelta:
    """Check what a launcher sets; return what a collective may take."""
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    for name in *names, "MASTER_PORT", "MASTER_ADDR":
        value = os.environ.get(name, "")
        if not (value if name == "MASTER_ADDR" else value.isdecimal()):
            why = f"{name} is {value!r}, but LOCAL_RANK is set"
            refuse(f"{why}: unset it and start with torchrun, or set all")
    for this, all_ in names[:2], names[2:]:
        if (rank := int(os.environ[this])) >= (num := int(os.environ[all_])):
            refuse(f"{this} {rank}: {all_} is {num}, so it ends at {num - 1}")
    text = os.environ.get("GROUP_TIMEOUT_S", "300")
    try:
        if not 0 < float(text) < 1e7:
            raise ValueError
    except ValueError:
        refuse(f"GROUP_TIMEOUT_S {text!r}: must be seconds, above 0")
    return timedelta(seconds=float(text))


def agree(args: argparse.Namespace) -> None:
    """End all ranks if their flags differ: so would what they train."""
    flags = [{}] * dist.get_world_size()
    dist.all_gather_object(flags, vars(args))
    for name in flags[0]:
        ranks = {}
        for rank, theirs in enumerate(flags):
            ranks.setdefault(repr(theirs.get(name)), []).append(rank)
        if len(ranks) > 1:
            found = [f"{value} on {who}" for value, who in ranks.items()]
            why = f"--{name.replace('_', '-')} differs between ranks"
            refuse(f"{why}: {', '.join(found)}: give all nodes the same")


if __name__ == "__main__":
    main()
