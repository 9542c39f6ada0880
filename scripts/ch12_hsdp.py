"""Chapter 12 - Sharding: HSDP shards in a machine, and copies between them.

Run it (no GPU needed; each two ranks play a machine):
    torchrun --standalone --nproc-per-node 4 scripts/ch12_hsdp.py
"""

import job  # first, since importing torch takes seconds

import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from ch12_fsdp import compare
from ch12_replicas import layers
from meter import Meter, predict
from tasks import GPT

PER_MACHINE = 2  # ranks 0 and 1 play a machine, ranks 2 and 3 the next


def make_mesh(world_size: int, device: torch.device):
    """Return the mesh [[0, 1], [2, 3]]: a row is a machine, and a replica."""
    shape = world_size // PER_MACHINE, PER_MACHINE
    names = "replicas", "shards"  # FSDP2 takes them in this order
    return init_device_mesh(device.type, shape, mesh_dim_names=names)


def expect(units: list, world_size: int, how: dict) -> dict[str, float]:
    """Predict what a step holds and sends, in bytes per parameter."""
    size = PER_MACHINE if "mesh" in how else world_size  # who share a model
    held = predict(3, units, size)
    del held["sent"]  # here it matters where
    gathered = 2 if "mp_policy" in how else 4  # twice for each micro-batch
    sent = 2 * gathered * how.get("parts", 1) + 4  # gradients go in float32
    inside = out = sent * (1 - 1 / size)  # one ring through all, or:
    if "mesh" in how:  # for each rank of a machine, its part's all_reduce
        out = 2 * 4 * (1 - PER_MACHINE / world_size)
    return held | {"inside": inside, "out": out}


def on_links(meter: Meter, rank: int, world_size: int, device) -> dict:
    """Return bytes on machine 0's busiest inner link, and those that leave."""
    sent = torch.zeros(world_size, 2, device=device)  # (W, 2): inside, out
    for (_, *ranks), num_bytes in meter.rings.items():
        following = ranks[(ranks.index(rank) + 1) % len(ranks)]
        out = following // PER_MACHINE != rank // PER_MACHINE
        sent[rank, int(out)] += num_bytes
    dist.all_reduce(sent)  # now each rank knows what all send
    inside, out = sent[:PER_MACHINE].unbind(dim=1)
    return {"inside": inside.max().item(), "out": out.sum().item()}


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    return job.Flags(__doc__, steps=2, layers=2, seed=0).parse_args(argv)


def main(args, rank: int, world_size: int, device: torch.device) -> None:
    """Print what FSDP2 and HSDP hold, send, and where, and how far off."""
    if world_size < 2 * PER_MACHINE or world_size % PER_MACHINE:
        why = f"{world_size} ranks are not two machines of {PER_MACHINE}"
        job.refuse(f"{why}, or more: start {2 * PER_MACHINE}")
    warnings.filterwarnings("ignore", "FSDP2-wrapped module|DTensor random")
    hybrid = {"mesh": make_mesh(world_size, device)}
    exact = {"FSDP2": {}, "HSDP": hybrid, "HSDP meta": hybrid | {"meta": True}}
    half = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    more = {"FSDP2 bf16": half, "HSDP bf16": hybrid | half}
    more |= {"FSDP2 2 batches": {"parts": 2}}
    more |= {"HSDP 2 batches": hybrid | {"parts": 2}}

    units = layers(GPT(layers=args.layers))
    units = [[p.numel() for m in ms for p in m.parameters()] for ms in units]
    num, place = sum(map(sum, units)), (rank, world_size, device)
    double = compare(exact, args, torch.double, *place)
    double = {name: gaps for name, gaps, _ in double}
    lines = ["bytes per parameter, counted (predicted):"]
    options = exact | more
    for name, gaps, meter in compare(options, args, torch.float, *place):
        told = expect(units, world_size, options[name])
        counted = meter.held | on_links(meter, *place)
        both = [f"{k} {counted[k] / num:.2f} ({told[k]:.2f})" for k in told]
        lines += [f"{name:15} sends {', '.join(both[3:])} of a machine"]
        if name in exact:
            rings = [f"{sign} {ranks}" for sign, *ranks in meter.rings]
            lines += [f"{name:15} holds {', '.join(both[:3])}"]
            lines += [f"{name:15} runs {', '.join(rings)}"]
            pairs = ("float64", double[name]), ("float32", gaps)
            off = [f"{d}: {w:.0e}, {g:.0e}" for d, (w, g) in pairs]
            lines += [f"{name:15} weights, gradients off in {'; '.join(off)}"]
    for line in lines if rank == 0 else ():
        job.say(line)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        main(args, *place)
