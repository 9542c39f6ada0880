"""Chapter 7 - A hierarchy: add up inside a node, then between nodes.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch7_hierarchy.py
"""

import job  # first, since importing torch takes seconds

from functools import partial

import torch
import torch.distributed as dist

from ch7_collectives import around, check, replay, ring


def hierarchical(x: torch.Tensor, nodes: int) -> None:
    """Add up inside each node, then a share of it across nodes, then share."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = world_size // nodes  # ranks per node
    node, local = divmod(rank, size)
    inside = range(node * size, (node + 1) * size)
    across = range(local, world_size, size)  # one rank of each node
    around(x, inside, range(size - 1))  # reduce_scatter
    mine = x.tensor_split(size)[(local + 1) % size]
    around(mine, across, range(2 * nodes - 2))  # all_reduce
    around(x, inside, range(size - 1, 2 * size - 2))  # all_gather


def compare(args, rank: int, world_size: int, device) -> None:
    """Compare a flat ring with a hierarchy, by what crosses between nodes."""
    nodes = args.nodes or 1 + (world_size % 2 == 0)
    if world_size % nodes:
        job.refuse(f"--nodes {nodes}: must divide the {world_size} ranks")
    n, size = 1000 * args.kb, world_size // nodes
    runs = {"ring": ring, "hierarchical": partial(hierarchical, nodes=nodes)}

    def cost(source, target, num_bytes):  # in units of n / B, inside a node
        out = source // size != target // size
        return num_bytes / n * (args.slower if out else 1)

    for name, run in runs.items():
        logs, _ = check(run, dist.all_reduce, n // 4, args.seed, device)
        out = [0] * nodes  # what leaves each node
        for source, log in enumerate(logs):
            for what, peer, num_bytes in log:
                if what == "isend" and source // size != peer // size:
                    out[source // size] += num_bytes
        if rank == 0:
            job.say(
                f"{name}: {replay(logs, lambda *_: 1)} steps, "
                f"{max(out) / n:.4g} n leave a node, "
                f"{replay(logs, cost):.4g} n / B in all"
            )


def parse_args(argv: list[str] | None = None):
    """Read the flags; --slower is how many times slower the network is."""
    parser = job.Flags(__doc__, kb=4000, slower=9, seed=0)
    parser.add_argument("--nodes", type=int, help="default: 2 if W is even")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with job.ranks(args := parse_args()) as place:
        compare(args, *place)
