"""Chapter 3 - Exact resume: stop anywhere, go on as if nothing had happened.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch3_resume.py
"""

import argparse
import gc
import os
from contextlib import suppress
from datetime import timedelta
from tempfile import TemporaryFile

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make_digits() -> tuple[TensorDataset, nn.Module]:
    """Handwritten digits, and a network that draws random numbers."""
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 10))
    return TensorDataset(x[:240].float() / 16, y[:240]), net


def setup() -> tuple[int, int, torch.device]:
    """Join the group torchrun describes: (rank, world_size, device)."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit(__doc__)  # started with python, not torchrun
    device = torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu is not None and gpu.type != "mps":  # a Mac's GPU has no collectives
        num_ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        if num_ranks > (num_gpus := torch.accelerator.device_count()):
            why = f"{num_ranks} ranks on this machine, but {num_gpus} GPUs"
            raise SystemExit(f"{why}: lower --nproc-per-node to {num_gpus}")
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    timeout = timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", 300)))
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )
    return dist.get_rank(), dist.get_world_size(), device


def say(text: str) -> None:
    """Print one line in one write: two ranks' lines never merge."""
    who = f"[rank {dist.get_rank()}/{dist.get_world_size()}]"
    print(f"{who} {text}\n", end="", flush=True)


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
                raise SystemExit(f"{why}: make room or name another") from None
        raise


def collect(parts: dict, epoch: int, step: int, gen, first) -> dict:
    """Gather all that the next step depends on; every rank calls it."""
    rng = [None] * dist.get_world_size()  # each rank has numbers of its own
    dist.all_gather_object(rng, [first, *(d.get_rng_state() for d in gen)])
    states = {name: part.state_dict() for name, part in parts.items()}
    return states | {"rng": rng, "epoch": epoch, "step": step}


def restore(path: str, parts: dict, forget: str) -> dict:
    """Fill the parts from a file; return what is in it."""
    state = torch.load(path, "cpu", weights_only=True)
    if (num := len(state["rng"])) != dist.get_world_size():
        raise SystemExit(f"{num} ranks wrote {path}: start as many")
    state.pop(forget, None)
    for name in parts.keys() & state.keys():
        parts[name].load_state_dict(state[name])
    return state


def train(args, device, stop=0, resume=False, forget="") -> torch.Tensor:
    """Train to the end, or save and stop after a step; return each loss."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # another dropout on each rank
    data, net = make_digits()
    sampler = DistributedSampler(data)
    own = torch.Generator()  # else a loader draws from torch's each epoch
    loader = DataLoader(data, 20, None, sampler, generator=own)
    gen = [torch] + [torch.get_device_module(device)] * (device.type != "cpu")
    optimizer = torch.optim.SGD(net.to(device).parameters(), 0.1, 0.9)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    parts = {"model": net, "optim": optimizer, "schedule": decay}
    state = restore(args.checkpoint, parts, forget) if resume else {}
    begin, done = state.get("epoch", 0), state.get("step", 0)
    first, *later = state["rng"][rank] if "rng" in state else [own.get_state()]
    own.set_state(first)  # sooner: the loader draws from it each epoch
    ddp, losses = nn.parallel.DistributedDataParallel(net), []
    for epoch in range(begin, 3):
        sampler.set_epoch(epoch)
        first = own.get_state()
        for step, (x, y) in enumerate(loader, 1):
            if (epoch, step) <= (begin, done):
                continue
            while later:  # not sooner: making the model drew numbers
                gen[len(later) - 1].set_rng_state(later.pop())
            loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(loss.detach())
            if len(losses) == stop:
                state = collect(parts, epoch, step, gen, first)
                if rank == 0:
                    save(args.checkpoint, state)
                dist.barrier()  # nobody reads before rank 0 has written
                return torch.stack(losses)
    return torch.stack(losses)


def main(argv: list[str] | None = None) -> None:
    """Train; stop and resume, with all pieces, and without each of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stop", type=int, default=8)
    parser.add_argument("--checkpoint", default="ch3_resume.pt")
    args = parser.parse_args(argv)
    try:
        TemporaryFile(dir=os.path.dirname(args.checkpoint) or ".").close()
    except OSError as error:
        raise SystemExit(f"--checkpoint will not do: {error}") from None
    rank, _, device = setup()
    whole = train(args, device)
    if not 0 < args.stop < len(whole):
        raise SystemExit(f"--stop {args.stop}: not in 1 to {len(whole) - 1}")
    train(args, device, stop=args.stop)
    for piece in ["nothing", *torch.load(args.checkpoint)]:
        rest = train(args, device, resume=True, forget=piece)
        off = (rest[: len(whole) - args.stop] - whole[args.stop :]).abs()
        dist.all_reduce(off, dist.ReduceOp.MAX)
        step = args.stop + int(off.bool().int().argmax())
        text = f"off by {off.max():.4f}, from step {step}"
        if rank == 0:
            say(f"lost {piece}: {text if off.any() else 'equal to the bit'}")


if __name__ == "__main__":
    main()
    gc.collect()  # torch 2.13 may abort at exit if DDP's last work lives
    dist.destroy_process_group()
