"""Chapter 11 - Where memory goes: ask before you have the GPUs.

Run it (no GPU needed):
    python scripts/ch11_questions.py
"""

import job  # first, since importing torch takes seconds

import warnings
from argparse import Namespace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils import checkpoint as torchs

from tasks import GPT

aten = torch.ops.aten  # of the CPU, since these are the CPU's fake tensors
ATTENTION = [aten._scaled_dot_product_flash_attention_for_cpu.default]
KEEP = {  # what a checkpointed block keeps beside its input
    "nothing": [],
    "attention": ATTENTION,
    "products": [*ATTENTION, aten.addmm.default, aten.mm.default],
}
BASE = {"group": 1, "reshard": True, "keep": (), "replicas": 1}
BASE |= {"param": torch.bfloat16, "reduce": torch.bfloat16}
warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # logits are a view


def build(args, how: dict) -> nn.Module:
    """Return a sharded GPT without numbers: its tensors have shapes only."""
    shape, names = (args.ranks,), ("shard",)
    if how["replicas"] > 1:
        shape = how["replicas"], args.ranks // how["replicas"]
        names = "replicate", "shard"
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(how["param"], how["reduce"])
    options = {"mesh": mesh, "mp_policy": policy}
    with torch.device("meta"):
        net = GPT(args.width, args.layers, args.width // 64, args.tokens)
        net.bytes = nn.Embedding(args.words, args.width)
        net.head = nn.Linear(args.width, args.words)
    blocks = list(net.blocks)
    for block, keep in zip(blocks, how["keep"], strict=False):
        again = partial(torchs.checkpoint, block.forward, use_reentrant=False)
        if ops := KEEP[keep]:
            contexts = torchs.create_selective_checkpoint_contexts
            again.keywords["context_fn"] = partial(contexts, ops)
        block.forward = again
    for at in range(0, len(blocks), how["group"]):
        unit = blocks[at : at + how["group"]]
        fully_shard(unit, reshard_after_forward=how["reshard"], **options)
    return fully_shard(net, **options)


def ask(args, **changes) -> dict[str, int]:
    """Return one rank's bytes by kind, at the peak of a step."""
    args = Namespace(**vars(args) | changes)
    dist.init_process_group("fake", rank=0, world_size=args.ranks)
    net = build(args, BASE | changes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        net.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()  # now Adam has its state
        optimizer.zero_grad()
        x = torch.zeros(args.batch_size, args.tokens, dtype=torch.int64)
        tracker = FSDPMemTracker(net, optimizer)
        tracker.track_inputs((x,))
        with tracker:
            loss = nn.functional.cross_entropy
            loss(net(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
    (kinds,) = tracker.get_tracker_snapshot("peak").values()
    dist.destroy_process_group()
    return {getattr(k, "value", k): size for k, size in kinds.items()}


def most(args, size: str) -> str:
    """Tell how the peak grows with a size, and how much of it fits."""
    few, many = (getattr(args, size) * times for times in (4, 8))
    less, slope = ask(args, **{size: few})["Total"], 0.0
    for _ in range(4):  # a line from point to point, as the peak may move
        more = ask(args, **{size: many})["Total"]
        slope = (more - less) / (many - few)
        room = max(1, int(many + (args.gpu_mb * 1e6 - more) // slope))
        if room in (few, many):
            break
        few, less, many = many, more, room
    return f"{slope / 1e6:.3f} MB each: at most {room} in {args.gpu_mb} MB"


def main(args) -> None:
    """Answer by number: megabytes at one rank's peak, or how many more."""
    base = ask(args)
    num, wide = args.layers, torch.float32
    job.put(f" 1 peak of one GPU: {base['Total'] / 1e6:.1f} MB")

    def row(number: int, text: str, **changes) -> None:
        more = ask(args, **changes)["Total"] - base["Total"]
        job.put(f"{number:2} {text}: {more / 1e6:+.1f} MB")

    job.put(f" 2 samples, {most(args, 'batch_size')}")
    job.put(f" 3 tokens per sample, {most(args, 'tokens')}")
    row(4, "checkpoint each block", keep=["nothing"] * num)
    row(5, "keep attention's outputs", keep=["attention"] * num)
    row(5, "keep products, too", keep=["products"] * num)
    row(6, "checkpoint half of the blocks", keep=["nothing"] * (num // 2))
    row(7, "compute in float32", param=wide, reduce=wide)
    job.put("sharding, the subject of chapter 12:")
    row(8, "all blocks in one unit", group=num)
    row(9, "twice as many ranks", ranks=2 * args.ranks)
    job.put(f"10 Adam's state on the CPU: {base['OptState'] / -1e6:+.1f} MB")
    row(11, "reduce gradients in float32", reduce=wide)
    row(12, "HSDP, 2 replicas", replicas=2)
    row(13, "reshard over 2 ranks", reshard=2)
    row(14, "don't reshard after forward", reshard=False)


def parse_args(argv: list[str] | None = None) -> Namespace:
    """Read the flags."""
    sizes = {"ranks": 8, "width": 1024, "layers": 4, "tokens": 512}
    sizes |= {"words": 2048, "batch_size": 1, "gpu_mb": 1024}
    args = job.Flags(__doc__, **sizes).parse_args(argv)
    if args.ranks % 2:
        job.refuse(f"--ranks {args.ranks}: must be even, for two replicas")
    if args.width % 64:
        job.refuse(f"--width {args.width}: must be a multiple of 64")
    return args


if __name__ == "__main__":
    main(parse_args())
