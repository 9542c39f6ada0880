"""Chapter 8 - DDP from scratch: read a trace of a step.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_trace.py
"""

import job  # first, since importing torch takes seconds

import json
import os
from contextlib import nullcontext

import torch
from torch import nn

from tasks import GPT, loss_on, read_text

BACKWARD = "autograd::engine::evaluate_function: "


def record(path: str, args, rank: int, device) -> None:
    """Train a GPT with DDP; write what a step does on rank 0 to a file."""
    text, _ = read_text()
    torch.manual_seed(args.seed + rank)
    net, cap_mb = GPT().to(device), args.kib / 1024
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=cap_mb)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    profile = torch.profiler.profile(activities=kinds)
    for step in range(4):  # DDP has its buckets from the second step on
        with profile if step == 3 and rank == 0 else nullcontext():
            starts = torch.randint(len(text) - 64, (16,))  # (B,)
            loss_on(ddp, text, starts, device).backward()
    if rank == 0:
        profile.export_chrome_trace(path)


def spans(path: str) -> tuple[list, list]:
    """Read (start, end) in ms of backward's operations, and of messages."""
    with open(path, encoding="utf8") as file:
        events = json.load(file)["traceEvents"]
    lanes = {BACKWARD: [], "gloo:": []}
    for event in events:
        for name, lane in lanes.items():
            if event.get("ph") == "X" and event["name"].startswith(name):
                start = event["ts"] / 1000
                lane.append((start, start + event["dur"] / 1000))
    return tuple(sorted(lane) for lane in lanes.values())


def report(path: str) -> None:
    """Say when each message ran, and how much of it backward has hidden."""
    backward, messages = spans(path)
    zero, end = backward[0][0], max(end for _, end in backward)
    job.say(f"backward: {len(backward)} operations in {end - zero:.1f} ms")
    for number, (start, stop) in enumerate(messages):
        hidden = max(0, min(stop, end) - start)
        when = f"{start - zero:.1f} to {stop - zero:.1f} ms"
        job.say(f"message {number}: {when}, {hidden:.1f} ms of it hidden")
    if messages:
        wait = max(0, max(stop for _, stop in messages) - end)
        job.say(f"then the step waits for {wait:.1f} ms")
    else:  # they are NCCL's, on a GPU
        job.say("no gloo message in the trace: this script reads gloo's only")
    job.say(f"{path} is written: open it in Perfetto")


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, seed=0)
    parser.add_argument("--kib", type=int, default=128, help="of a bucket")
    parser.add_argument("--trace", default="ch8_trace.json", help="to write")
    args = parser.parse_args(argv)
    try:
        if os.path.exists(args.trace) and not os.path.isfile(args.trace):
            raise OSError(0, "not the name of a file")  # it would go
        open(args.trace, "a", encoding="utf8").close()
    except OSError as error:
        why = f"--trace {args.trace or repr(args.trace)}: {error.strerror}"
        job.refuse(f"{why}: name a file that can be written")
    return args


def main() -> None:
    """Record a step, and report it."""
    args = parse_args()
    with job.ranks(args) as (rank, _, device):
        record(args.trace, args, rank, device)
        if rank == 0:
            report(args.trace)


if __name__ == "__main__":
    main()
