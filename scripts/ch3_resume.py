"""Chapter 3 - Exact resume: stop anywhere, go on as if nothing had happened.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch3_resume.py
"""

import job  # first, since importing torch takes seconds

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import checkpoint
from tasks import read_digits


def train(args, device, stop=0, resume=False, forget="") -> torch.Tensor:
    """Train to the end, or save and stop after a step; return each loss."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # another dropout on each rank
    data = TensorDataset(*read_digits(240, "cpu"))  # N = 240 samples
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 10))
    sampler = DistributedSampler(data)
    own = torch.Generator()  # else a loader draws from torch's each epoch
    loader = DataLoader(data, 20, None, sampler, generator=own)
    generators = [torch]
    if device.type != "cpu":
        generators.append(torch.get_device_module(device))
    optimizer = torch.optim.SGD(net.to(device).parameters(), 0.1, 0.9)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    parts = {"model": net, "optim": optimizer, "schedule": decay}
    state = restore(args.checkpoint, parts, forget) if resume else {}
    begin, done = state.get("epoch", 0), state.get("step", 0)
    first, *saved = state["rng"][rank] if "rng" in state else [own.get_state()]
    own.set_state(first)  # at once: the loader draws from it each epoch
    ddp, losses = nn.parallel.DistributedDataParallel(net), []
    for epoch in range(begin, 3):
        sampler.set_epoch(epoch)
        first = own.get_state()
        for step, (x, y) in enumerate(loader, 1):  # (20, 64), (20,)
            if (epoch, step) <= (begin, done):
                continue
            if saved:  # only now: making the model drew numbers
                for generator, numbers in zip(generators, saved, strict=True):
                    generator.set_rng_state(numbers)
                saved = []
            loss = nn.functional.cross_entropy(ddp(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            decay.step()
            losses.append(loss.detach())
            if len(losses) == stop:
                state = collect(parts, epoch, step, generators, first)
                if rank == 0:
                    checkpoint.save(args.checkpoint, state)
                dist.barrier()  # nobody reads before rank 0 has written
                return torch.stack(losses)
    return torch.stack(losses)


def collect(parts: dict, epoch: int, step: int, generators, first) -> dict:
    """Gather all that the next step depends on; every rank calls it."""
    mine = [first, *(source.get_rng_state() for source in generators)]
    rng = [None] * dist.get_world_size()  # each rank has numbers of its own
    dist.all_gather_object(rng, mine)
    states = {name: part.state_dict() for name, part in parts.items()}
    return states | {"rng": rng, "epoch": epoch, "step": step}


def restore(path: str, parts: dict, forget: str) -> dict:
    """Fill the parts from a file; return what is in it."""
    state = torch.load(path, "cpu", weights_only=True)
    if (num := len(state["rng"])) != dist.get_world_size():
        job.refuse(f"{num} ranks wrote {path}: start as many")
    state.pop(forget, None)
    for name in parts.keys() & state.keys():
        parts[name].load_state_dict(state[name])
    return state


def compare(args, rank: int, world_size: int, device: torch.device) -> None:
    """Train; stop and resume, with all pieces, and without each of them."""
    num_steps = 3 * math.ceil(math.ceil(240 / world_size) / 20)
    if args.stop >= num_steps:
        job.refuse(f"--stop {args.stop}: must be 1 to {num_steps - 1}")
    whole = train(args, device)  # (steps,)
    train(args, device, stop=args.stop)
    for piece in ["nothing", *torch.load(args.checkpoint, "cpu")]:
        rest = train(args, device, resume=True, forget=piece)
        off = (rest[: len(whole) - args.stop] - whole[args.stop :]).abs()
        dist.all_reduce(off, dist.ReduceOp.MAX)
        step = args.stop + int(off.bool().int().argmax())
        how = f"off by {off.max():.4f}, from step {step}"
        if rank == 0:
            how = how if off.any() else "bit for bit the same"
            job.say(f"lost {piece}: {how}")


def parse_args(argv: list[str] | None = None):
    """Read the flags: the step to stop after, and where to save."""
    parser = job.Flags(__doc__, stop=8)
    checkpoint.add_flags(parser, "ch3_resume.pt")
    return checkpoint.keep(parser.parse_args(argv))


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(args, *place)
