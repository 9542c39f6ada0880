r"""Addresses cannot be retrieved: MASTER_ADDR names an unknown host.

class: multi-node
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: The IPv6 network addresses of \(.*\) cannot be retrieved

You see: the job hangs in `init_process_group` and repeats `The IPv6 network addresses
of (...) cannot be retrieved`, for 30 minutes (10 with NCCL; here a third of a second).

Cause: the name cannot be turned into an address. The line says IPv6 only because that
is asked for first; it means that no address was found at all. Names of containers, a
Mac's `name.local`, and a list of machines in place of its first are the usual culprits.

Cure: use a name that every machine resolves, or an IP address. On a single machine,
`localhost` is enough.

Next time: `getent hosts "$MASTER_ADDR"` on every machine.

Links: https://github.com/karpathy/nanochat/issues/42 (a Mac that does not know its own name)
https://github.com/antgroup/animate-x/issues/15 (even localhost was missing)
https://github.com/OFA-Sys/OFA/issues/307 (the address of another machine)
"""

# %% given
import os
import re
from datetime import timedelta

import torch.distributed as dist

nodes = ["localhost", *[f"gpu-node-{i:03}" for i in range(6)]]
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}
os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)


def init_process_group():
    """With a short timeout; show what torch's C++ part wrote to stderr."""
    try:
        dist.init_process_group("gloo", timeout=timedelta(milliseconds=300))
    except dist.DistNetworkError:
        with open("stderr") as file:
            warning = re.search(r"\[c10d\] The IPv6.*", file.read())
        raise SystemExit(re.sub(r" \d+\)", " 29500)", warning[0])) from None


# %% broken
os.environ["MASTER_ADDR"] = ",".join(nodes)
init_process_group()
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% fixed
os.environ["MASTER_ADDR"] = nodes[0]
init_process_group()
print("rank", dist.get_rank(), "of", dist.get_world_size())

# %% signs
# maybe: network addresses of \(.*\) cannot be retrieved
# maybe: socket\.gaierror: \[Errno -?\d+\]
# host not found:
# maybe: [Cc]ould not resolve hostname
# RuntimeError: Name or service not known
# maybe: ^(?!.*(?:HTTP|urlopen)).*Temporary failure in name resolution
# with: rendezvous|TCPStore|init_process_group|MASTER_ADDR|\[c10d\]|gai error|hostfile|deepspeed
# IPv4 network addresses of \(.*\) cannot be retrieved
# maybe: ^(?!.*(?:HTTP|urlopen)).*: (?:Name or service not known|nodename nor servname provided)
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: \[rank0\]|\[rank1\]|\[rank2\]|\[rank3\]|\[rank4\]|\[rank5\]|\[rank6\]|\[rank7\]
# unless: urllib3|requests\.exceptions|huggingface\.co|HTTPSConnection|wandb\.errors|github\.com
# maybe: hostname of the client socket cannot be retrieved
# with: client socket cannot be retrieved
