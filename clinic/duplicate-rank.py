r"""Address already in use: two processes have the same rank.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 1: .*EADDRINUSE, message: address already in use

You see: "address already in use" from one process, as if the port were taken. The other
one waits. With two machines there is no message: both wait for rank 1 until the
timeout, 30 minutes by default.

Cause: rank 0 hosts the store, so a process with RANK=0 listens on MASTER_PORT. The
second one with RANK=0 wants to do the same, and no process joins as rank 1. The usual
reason is the same `--node-rank` on two machines, or a rank computed from a local rank.

Cure: give every process its own rank; torchrun numbers them for you.

Next time: before you blame the port, print RANK and WORLD_SIZE on every process.

Links: https://github.com/narumiruna/pytorch-distributed-example/issues/19 (same --node_rank)
"""

# %% given
import os
import socket

port = torch.tensor(0)
if rank == 0:
    with socket.create_server(("localhost", 0)) as free:
        port += free.getsockname()[1]
dist.broadcast(port, src=0)
dist.destroy_process_group()
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=f"{port}")


def start_later():
    """As a second machine may: come when the first one listens."""
    while rank == 1:
        with socket.socket() as knock:
            if knock.connect_ex(("localhost", port.item())) == 0:
                break


# %% broken
node_rank = 0  # on both machines
start_later()
dist.init_process_group("gloo", rank=node_rank, world_size=2)
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
node_rank = rank
start_later()
dist.init_process_group("gloo", rank=node_rank, world_size=2)
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# maybe: The server socket has failed to listen on any local network address
# with: WORLD_SIZE|node_rank|node-rank
# Bootstrap Root ?: rank \d+ of \d+ ranks has already checked in
