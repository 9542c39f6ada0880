"""Chapter 8 - DDP from scratch: what torch.compile makes of it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 2 scripts/ch8_compile.py
"""

import job  # first, since importing torch takes seconds

import torch
from torch import nn

from tasks import GPT, loss_on, read_text


def graphs(optimize: bool, args, device) -> list[int]:
    """Compile a GPT inside DDP; return how many operations each graph has."""
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = optimize
    sizes = []

    def backend(graph, _):
        """Compile nothing; count."""
        sizes.append(sum("call" in node.op for node in graph.graph.nodes))
        return graph.forward

    torch.manual_seed(args.seed)
    net = GPT(dim=128, layers=4).to(device)
    ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=args.cap_mb)
    compiled = torch.compile(ddp, backend=backend)
    text, _ = read_text()
    starts = torch.randint(len(text) - 64, (4,))
    loss_on(compiled, text, starts, device).backward()
    return sizes


def parse_args(argv: list[str] | None = None):
    """Read the flags."""
    parser = job.Flags(__doc__, seed=0)
    parser.add_argument("--cap-mb", type=int, default=1, help="of a bucket")
    return parser.parse_args(argv)


def main() -> None:
    """Compile with one graph for all, and with one for each bucket."""
    args = parse_args()
    with job.ranks(args) as (rank, _, device):
        for optimize in False, True:
            sizes = graphs(optimize, args, device)
            if rank == 0:
                what = f"graphs: {len(sizes)}, operations: {sizes}"
                job.say(f"{optimize=}: {what}")


if __name__ == "__main__":
    main()
