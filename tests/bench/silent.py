"""Silent errors that others have published: which of them allranks.guard names.

The list is that of TrainCheck's evaluation (OSDI 2025) and of its success stories; the
programs are our own, after the descriptions of those that a CPU can show. Each is
trained by two ranks under the three lines, and if they say nothing, ``preflight`` is
asked where it applies.
"""

import copy
import functools
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from allranks import Ranks
from allranks.guard import Guard, GuardError

mse = nn.functional.mse_loss
PROGRAMS = {}


def program(function):
    """Register a training under the number of its report."""
    PROGRAMS[function.__name__] = function
    return function


def network(*inner):
    """Build a small network with the same weights on all ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *inner, nn.ReLU(), nn.Linear(8, 2))


class Training:
    """One training, under the guard's three lines or its ``preflight``."""

    def __init__(self, ahead: bool) -> None:
        self.ahead = ahead

    def __call__(self, model, optimizer=None, **options) -> None:
        """Train for two epochs, or run the preflight before the first."""
        draw = torch.Generator().manual_seed(0)
        data = TensorDataset(*(torch.randn(48, n, generator=draw) for n in (6, 2)))
        data = options.get("data", data)
        sampler = DistributedSampler(data)
        workers = options.get("workers", {})
        loader = DataLoader(data, 4, sampler=sampler, **workers)
        optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.01)
        loss = options.get("loss") or (lambda model, b: mse(model(b[0]), b[1]))
        with Guard(model, optimizer, patience_s=30) as watch:
            if self.ahead:
                watch.preflight(loss, next(iter(loader)))
                return
            for epoch in range(2):
                sampler.set_epoch(epoch)
                for batch in watch.epoch(loader, epoch):
                    if options.get("zeroes", True):
                        optimizer.zero_grad()
                    loss(model, batch).backward()
                    options.get("before", lambda: None)()
                    watch.step()
                    optimizer.step()


@program
def x_jxmnop(train):
    """The forward goes through DDP in some steps and past it in others."""
    net, calls = network(), []
    ddp = DDP(net)

    def loss(model, batch):
        calls.append(1)
        return mse((model if len(calls) % 2 else net)(batch[0]), batch[1])

    train(ddp, loss=loss)


@program
def pytorch_104336(train):
    """The model moves after it was wrapped, and its parameters are new objects."""
    ddp = DDP(network())
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        ddp.double().float()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    train(ddp)


@program
def deepspeed_1801(train):
    """Clipping leaves out, on all ranks but one, what tensor parallelism replicates."""
    net = network(nn.LayerNorm(8))

    def before():
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        norm = nn.utils.get_total_norm([p.grad for p in net.parameters()])
        for name, p in net.named_parameters():
            if dist.get_rank() == 0 or not name.startswith("1."):
                p.grad *= min(1, 0.01 / norm.item())

    train(net, before=before)


@program
def pytorch_84803(train):
    """What one GPU sends to another arrives as zeros, now and then.

    baichuan2-86 and pytorch-96600 are the same.
    """

    def lossy(calls, bucket):
        sums = dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future()
        calls.append(1)

        def arrive(done):
            found = done.value()[0]
            lost = dist.get_rank() == 1 and len(calls) % 4 == 0
            return found.zero_() if lost else found

        return sums.then(arrive)

    ddp = DDP(network())
    ddp.register_comm_hook([], lossy)
    train(ddp)


@program
def stackoverflow_60335387(train):
    """zero_grad() is missing."""
    train(DDP(network()), zeroes=False)


@program
def pytorch_forum_84911(train):
    """All layers are frozen but those that should be: only BatchNorm trains."""
    net = network(nn.BatchNorm1d(8))
    for layer in net[0], net[3]:
        layer.requires_grad_(False)
    train(DDP(net), torch.optim.Adam(net[3].parameters(), 0.01))


@program
def accelerate_2665(train):
    """The optimizer holds other tensors than the wrapped model's."""
    net = network()
    optimizer = torch.optim.AdamW(copy.deepcopy(net).parameters(), 0.01)
    train(DDP(net), optimizer)


class Augmented(TensorDataset):
    """Samples with noise from NumPy's global generator."""

    def __getitem__(self, index):
        """Return a sample with noise."""
        x, y = super().__getitem__(index)
        return x + torch.from_numpy(np.random.normal(size=6)).float(), y


@program
def stackoverflow_67180955(train):
    """All workers begin with one state of NumPy's generator, as before torch 1.9."""
    draw = torch.Generator().manual_seed(0)
    data = Augmented(*(torch.randn(48, n, generator=draw) for n in (6, 2)))
    workers = {"num_workers": 2, "worker_init_fn": lambda _: np.random.seed(0)}
    workers["multiprocessing_context"] = "fork"
    train(DDP(network()), data=data, workers=workers)


@program
def transformers_33844(train):
    """Dropout goes on in evaluation."""
    ddp = DDP(network())

    def loss(model, batch):
        x = nn.functional.dropout(batch[0], 0.5)  # without training=model.training
        return mse(model(x), batch[1])

    train(ddp, loss=loss)


@program
def pytorch_51800(train):
    """spectral_norm evaluates before its first forward has initialised it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.utils.spectral_norm(nn.Linear(6, 2)).eval()
    train(DDP(net))


def on_rank(folder: str, name: str, ahead: bool) -> str:
    """Play a program on this rank; return what the guard said, or ""."""
    import importlib
    import sys

    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("silent").play(name, ahead)


def play(name: str, ahead: bool) -> str:
    """Run a program; return what the guard said, or ""."""
    torch.set_num_threads(1)
    torch.manual_seed(100 + dist.get_rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            PROGRAMS[name](Training(ahead))
        except GuardError as error:
            return str(error)
    told = [str(w.message) for w in caught if "guard: " in str(w.message)]
    return " ".join(told)


def run() -> dict:
    """Play each program by the three lines, and if they are silent by preflight."""
    results = {}
    with Ranks(2) as ranks:
        ask = functools.partial(ranks.run, on_rank, str(Path(__file__).parent))
        for name in PROGRAMS:
            said, by = "", "nothing"
            for ahead, call in enumerate(("the three lines", "preflight")):
                said = ask(name, bool(ahead), timeout=120, quiet=True)[0]
                if said:
                    by = call
                    break
            results[name] = {"by": by, "said": said}
    found = [result["by"] for result in results.values()]
    return results | {
        "programs": len(found),
        "lines": found.count("the three lines"),
        "ahead": found.count("preflight"),
    }


def report(results: dict) -> str:
    """Return one line for each program."""
    lines = [
        f"{name}: {results[name]['by']}: {results[name]['said']}" for name in PROGRAMS
    ]
    total = "{lines} of {programs} by three lines, {ahead} by preflight"
    return "\n".join([*lines, total.format(**results)])
