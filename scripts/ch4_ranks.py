"""Chapter 4 - Ranks: every process says who it is, and all verify it.

Run it (no GPU needed):
    torchrun --standalone --nproc-per-node 4 scripts/ch4_ranks.py
"""

import job  # first, since importing torch takes seconds

import os

import torch
import torch.distributed as dist

# Where torchrun puts the three numbers that place a process in its cluster.
PLACE = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# All that torchrun sets; the last three have a new value in every run.
VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
    *("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
)


def setup(args) -> tuple[int, int, torch.device]:
    """Join the group that torchrun describes: (rank, world_size, device)."""
    timeout, device = job.launched(), torch.device("cpu")
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if gpu and gpu.type != "mps":  # no backend works with a Mac's GPU
        device = torch.device(gpu.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),  # nccl, or gloo
        timeout=timeout,
        device_id=device if device.type != "cpu" else None,
    )
    job.agree(args)
    return dist.get_rank(), dist.get_world_size(), device


def gather_places(device: torch.device) -> torch.Tensor:
    """Collect everybody's place: row r is what rank r says about itself."""
    mine = torch.tensor([int(os.environ[n]) for n in PLACE], device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows).cpu()  # (W, 3)


def count_processes(places: torch.Tensor) -> list[int]:
    """Count the processes of each node, by node rank."""
    return places[:, 0].bincount().tolist()


def verify(places: torch.Tensor) -> None:
    """Recompute each rank from its place; every rank checks all of them."""
    nodes = count_processes(places)
    if 0 in nodes:
        raise RuntimeError(f"node {nodes.index(0)} has no process: {nodes}")
    for rank, (node_rank, local_rank, num_local) in enumerate(places.tolist()):
        computed = sum(nodes[:node_rank]) + local_rank
        if (computed, nodes[node_rank]) != (rank, num_local):
            raise RuntimeError(
                f"rank {rank} says node_rank {node_rank}, local_rank "
                f"{local_rank} of {num_local}: that is rank {computed} of a "
                f"node with {nodes[node_rank]} processes"
            )


def parse_args(argv: list[str] | None = None):
    """Read the command line."""
    parser = job.Flags(__doc__)
    how = {"type": int, "metavar": "R", "help": "show rank R's variables too"}
    parser.add_argument("--env", **how)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Say who I am, check everybody's rank, and show what torchrun told us."""
    args = parse_args(argv)
    rank, world_size, device = setup(args)
    if args.env is not None and not 0 <= args.env < world_size:
        job.refuse(f"--env {args.env}: must be 0 to {world_size - 1}")
    places = gather_places(device)
    verify(places)
    nodes = count_processes(places)
    node_rank, local_rank, _ = places[rank].tolist()
    job.say(
        f"node_rank {node_rank}, local_rank {local_rank}, device {device}: "
        f"rank = {sum(nodes[:node_rank])} + {local_rank}"
    )
    if rank == 0:
        sizes = f"{' + '.join(map(str, nodes))}; world_size {world_size}"
        job.say(f"processes by node: {sizes}: verified")
    for name in VARIABLES if rank == args.env else ():
        value = os.environ.get(name, "(not set)")
        job.say(f"{name}={'(new)' if name in VARIABLES[-3:] else value}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
