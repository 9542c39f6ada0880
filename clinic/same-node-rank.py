r"""Address already in use: two torchruns have the same node rank.

class: multi-node
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: EADDRINUSE

You see: on one host, the second torchrun dies with `address already in use`. On two
hosts both wait, and after 15 minutes each says `wait timeout`, with
`torchelastic/role_info/1` among the keys.

Cause: node rank 0 opens the store, and every other connects to it. On one host the
second agent with number 0 finds the port taken. On two hosts both reach the store of
the first one, and then wait for the report of a machine 1 that does not exist.

Cure: number the machines: `--node-rank $SLURM_NODEID`, or what your scheduler calls it.
With `--rdzv-backend c10d` the agents number themselves.

Next time: compare the commands of the machines. They must differ in `--node-rank` and
in nothing else.

Links: https://github.com/vllm-project/vllm/issues/39015 (EADDRINUSE from torchrun's static rendezvous)
https://github.com/modelscope/ms-swift/issues/4924 (two machines, and these keys after 15 minutes)
"""

# %% given
import contextlib
import socket

from torch.distributed import run

with socket.create_server(("localhost", 0)) as server:
    where = [server.getsockname()[1]]
dist.broadcast_object_list(where)
with open("train.py", "w") as file:
    file.write("import os; print('machines:', os.environ['GROUP_WORLD_SIZE'])")


def torchrun(options):
    """Start an agent, the second one as soon as the first one's port is open."""
    while rank == 1:
        with contextlib.suppress(OSError):
            socket.create_connection(("localhost", where[0])).close()
            break
    store = f"--master-addr localhost --master-port {where[0]}"
    run.main(f"{options} {store} train.py".split())


# %% broken
torchrun("--nnodes 2 --node-rank 0")

# %% fixed
torchrun(f"--nnodes 2 --node-rank {rank}")

# %% signs
# maybe: EADDRINUSE, message: address already in use
# maybe: wait timeout after .*torchelastic/role_info/
# with: static_tcp_rendezvous\.py|torchelastic/role_info/
