"""Chapter 12 - Sharding: FSDP2, and what each of its options changes.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch12_fsdp.py
"""

import job  # first, since importing torch takes seconds

import warnings
from collections import Counter
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ch12_replicas import layers, off
from meter import Meter
from tasks import GPT, loss_on, read_text


def make(args, dtype, device, meta=False, units=True, ahead=False, **how):
    """Return a GPT of which each rank has a part, as the options say."""
    rank = dist.get_rank()
    if "mesh" in how:  # HSDP's replicas must draw the same
        rank = how["mesh"].get_local_rank("shards")
    torch.manual_seed(args.seed + rank)
    with torch.device("meta") if meta else device:
        net = GPT(layers=args.layers).to(dtype)
    for p in net.parameters() if not meta else ():
        dist.broadcast(p.detach(), 0)  # FSDP2 doesn't: it cuts what is there
    for modules in layers(net) if units else ():
        fully_shard(modules, **how)
    fully_shard(net, **how)  # takes what is in no unit yet
    if meta:  # so far, only shapes: no rank ever holds the whole net
        net.to_empty(device=device)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()  # different numbers on each rank
    for block, following in pairwise(net.blocks) if ahead else ():
        block.set_modules_to_forward_prefetch([following])
    return net


def whole(named) -> dict[str, torch.Tensor]:
    """Return whole tensors; gather those of which a rank has a part."""
    own = {name: t.detach().clone() for name, t in named}
    parts = {n: t for n, t in own.items() if isinstance(t, DTensor)}
    return own | {name: t.full_tensor() for name, t in parts.items()}


def train(net: nn.Module, steps: torch.Tensor, device, parts=1) -> tuple:
    """Train; return the weights, the last gradients and norm, and a Meter.

    steps (steps, B): where windows of the text begin, in parts for each step.
    """
    optimizer, text = torch.optim.AdamW(net.parameters()), read_text()[0]
    meter = Meter(net, optimizer, net.blocks)
    for starts in steps:
        meter.rings, meter.events = Counter(), []
        for left, some in enumerate(starts.chunk(parts), 1 - parts):
            if parts > 1:  # send gradients in the last part only
                net.set_requires_gradient_sync(left == 0)
            with meter:
                (loss_on(net, text, some, device) / parts).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1)  # of all parts
        grads = whole((n, p.grad) for n, p in net.named_parameters())
        with meter:
            optimizer.step()
        optimizer.zero_grad()
    grads |= whole([("norm", norm)])
    return whole(net.named_parameters()), grads, meter


def compare(options: dict, args, dtype, rank, world_size, device):
    """Train with each; yield its name, how far it is off, and a Meter."""
    dice, text = torch.Generator().manual_seed(args.seed), read_text()[0]
    shape = args.steps, world_size, 4  # windows for each rank
    steps = torch.randint(len(text) - 64, shape, generator=dice)
    for name, how in options.items():
        parts = (how := dict(how)).pop("parts", 1)
        net = make(args, dtype, device, **how)
        alone = GPT(layers=args.layers).to(device, dtype)
        alone.load_state_dict(whole(net.named_parameters()))
        *theirs, _ = train(alone, steps.flatten(1), device)
        *ours, meter = train(net, steps[:, rank], device, parts)
        yield name, [*map(off, ours, theirs)], meter


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=2, layers=2, seed=0).parse_args(argv)


def main(args, rank: int, world_size: int, device: torch.device) -> None:
    """Print what each option holds, sends and does, and when."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module|DTensor random")
    options = {"per layer": {}, "kept": {"reshard_after_forward": False}}
    options |= {"one unit": {"units": False}, "one ahead": {"ahead": True}}
    options |= {"2 batches": {"parts": 2}, "meta": {"meta": True}}
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    options["bf16"] = {"mp_policy": policy}
    if rank == 0:
        job.say("bytes per parameter; weights, gradients off; then what runs:")
    place = rank, world_size, device
    num = sum(p.numel() for p in GPT(layers=args.layers).parameters())
    for name, gaps, meter in compare(options, args, torch.float, *place):
        counted = meter.held | {"sent": meter.sent}
        held = ", ".join(f"{k} {v / num:.2f}" for k, v in counted.items())
        if rank == 0:
            job.say(f"{name:9} {held}; {gaps[0]:.0e}, {gaps[1]:.0e} off")
            job.say(f"{'':9} {' '.join(meter.events)}")


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
