"""Node 5 of three nodes.

runs on: 3 ranks
outcome: raises
chapter: ch4_ranks

Three nodes with eight processes each: the exercise's world size, 24, is right. Its
`node_rank=5` cannot be: the nodes are 0, 1 and 2. `torchrun` takes the number and
waits, ten minutes by default. And of 16 GPUs per node, 8 stay idle. (Each rank below
plays a node, with two processes instead of eight and a time limit of 3 s.) Nodes need
not be equal either, so read the world size from the environment instead of multiplying.
"""

# %% given
import socket

from torch.distributed import run

with open("train.py", "w") as file:
    file.write("import os\nsize = os.environ['WORLD_SIZE']\n")
    file.write("print(f'world size {size}\\n', end='')")  # in one write
port = torch.zeros(1, dtype=torch.int64)
if rank == 0:
    port[0] = socket.create_server(("127.0.0.1", 0)).getsockname()[1]  # a free one
dist.broadcast(port, src=0)


def torchrun(node_rank, timeout):
    nodes = f"--nnodes 3 --nproc-per-node 2 --node-rank {node_rank}"
    meet = f"--master-port {port.item()} --rdzv-conf timeout={timeout}"
    try:
        run.main([*nodes.split(), *meet.split(), "train.py"])
    except dist.DistError:
        if rank == 0:  # the others then lose it, and say so in one way or another
            raise


# %% wrong
torchrun(node_rank=[0, 1, 5][rank], timeout=3)

# %% right
torchrun(node_rank=[0, 1, 2][rank], timeout=60)
