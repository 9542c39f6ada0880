"""Chapter 6 - Pipeline: a stage on each rank, micro-batches flow through.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch6_pipeline.py
"""

import job  # first, since importing torch takes seconds

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_device_mesh, pipelining

LENGTH, WIDTH, BLOCKS = 64, 64, 8  # bytes per sample, numbers per byte


def into_stages(net: nn.Sequential, num: int) -> list[nn.Sequential]:
    """Split the blocks evenly into num stages, and keep the net's two ends."""
    edges = [0, *(1 + BLOCKS * i // num for i in range(1, num)), len(net)]
    return [net[edges[i] : edges[i + 1]] for i in range(num)]


def build(args, mesh, net: nn.Sequential, device):
    """Keep this rank's stages of net; return them and their schedule."""
    ranks, rank = mesh["pp"].size(), mesh["pp"].get_local_rank()
    twice = args.schedule == "interleaved1f1b"  # rank 0 of 4: stages 0 and 4
    num, stages = ranks * 2 if twice else ranks, []
    pp, options = mesh.get_group("pp"), {"process_group": mesh.get_group("dp")}
    options["find_unused_parameters"] = True  # torch 2.13: GPipe fails without
    if num > BLOCKS:
        job.refuse(f"{num} stages > {BLOCKS} blocks: start fewer ranks")
    for i, part in list(enumerate(into_stages(net, num)))[rank::ranks]:
        part.to(device)
        if args.dp > 1:  # the copies of *this stage* stay equal
            part = nn.parallel.DistributedDataParallel(part, **options)
        stages += [pipelining.PipelineStage(part, i, num, device, group=pp)]
    kind = pipelining.schedules.get_schedule_class(args.schedule)
    work = stages if twice else stages[0]
    try:
        schedule = kind(work, args.microbatches, nn.functional.cross_entropy)
    except ValueError as error:
        job.refuse(f"--microbatches: {error}")
    return stages, schedule


def train(args, rank: int, world_size: int, device) -> list[torch.Tensor]:
    """Train this rank's stages; return the losses, if it has the last one."""
    parts = args.dp * args.microbatches
    if world_size % args.dp:
        job.refuse(f"--dp {args.dp}: must divide {world_size}, the ranks")
    if args.batch_size % parts:
        why = f"must be a multiple of --dp x --microbatches, {parts}"
        job.refuse(f"--batch-size {args.batch_size}: {why}")
    torch.manual_seed(args.seed)  # all make the same net; each keeps its part
    pieces, net = make_text_task()
    shape = args.dp, world_size // args.dp  # 4 ranks: 1 x 4 or 2 x 2
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "pp"))
    replica = mesh["dp"].get_local_rank()
    stages, schedule = build(args, mesh, net, device)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    job.say(f"replica {replica}, stages {[s.stage_index for s in stages]}")
    optimizer = torch.optim.AdamW(parameters, args.lr)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for step in range(args.steps):
        pick = torch.randint(len(pieces), (args.batch_size,), generator=dice)
        batch = pieces[pick[replica :: args.dp]].long()  # (B / dp, 65)
        batch = batch.to(device)
        x = [batch[:, :-1]] if stages[0].is_first else []  # others receive
        y, found = batch[:, 1:].flatten(), []
        optimizer.zero_grad()
        schedule.step(*x, target=y, losses=found)
        optimizer.step()
        if found:  # on the last stage: a loss per micro-batch
            # Without its graph: gloo divides in a thread, beside autograd.
            loss = torch.stack(found).mean().detach()
            dist.all_reduce(loss, dist.ReduceOp.AVG, mesh.get_group("dp"))
            losses.append(loss)
            if replica == 0 and step % 10 == 9:
                loss = torch.stack(losses[-10:]).mean()
                job.say(f"steps {step - 8} to {step + 1}: {loss=:.3f}")
        if step % 10 == 9 or step + 1 == args.steps:
            last = losses[-1] if found else 0.0
            last = torch.tensor(float(last), device=device)
            dist.all_reduce(last)  # no number on one rank: none on all
            job.finite(last, f"{step=}")
    return losses


class Causal(nn.TransformerEncoderLayer):
    """A transformer block in which a byte sees only those before it."""

    def forward(self, x):
        ahead = torch.ones(LENGTH, LENGTH, device=x.device).triu(1).bool()
        return super().forward(x, src_mask=ahead, is_causal=True)


def make_text_task() -> tuple[torch.Tensor, nn.Sequential]:
    """Make pieces of Python's library, and a net to guess the next byte."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = bytearray(b"".join(path.read_bytes() for path in files))
    net = [nn.Embedding(256, WIDTH)]
    net += [Causal(WIDTH, 4, 256, 0, batch_first=True) for _ in range(BLOCKS)]
    net += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Flatten(0, 1)]
    pieces = torch.frombuffer(text, dtype=torch.uint8).unfold(0, LENGTH + 1, 1)
    return pieces, nn.Sequential(*net)


def parse_args(argv: list[str] | None = None):
    """Read the flags; --dp is how many copies of the pipeline there are."""
    numbers = {"steps": 20, "batch_size": 32, "microbatches": 8}
    parser = job.Flags(__doc__, **numbers, dp=1, seed=0, lr=0.003)
    kinds = "gpipe", "1f1b", "interleaved1f1b"
    parser.add_argument("--schedule", choices=kinds, default="1f1b")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        train(args, *place)
