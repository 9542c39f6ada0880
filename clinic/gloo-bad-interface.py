r"""Unable to find address for: GLOO_SOCKET_IFNAME does not exist here.

class: process group
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Unable to find address for: eth9

You see: `init_process_group` fails at once on the nodes where the network interface has
a different name. With NCCL the group is made, and the first collective says "Bootstrap
: no socket interface found".

Cause: gloo listens on the interface that the variable names, exactly that one. Names
differ from machine to machine (`eth0`, `ens5`, `enp3s0`), and NCCL's pattern `^lo` (all
but lo) is not a name to gloo.

Cure: unset the variable, or name an interface that `ip addr` lists on this node; on a
single machine `lo` will do.

Next time: run `ip addr; env | grep IFNAME` on every node, through the same launcher.

Links: https://github.com/Megvii-BaseDetection/YOLOX/issues/139 (ib0, set by the library)
https://github.com/aws-samples/aws-do-eks/pull/51 (NCCL's pattern ^lo given to gloo)
"""

# %% given
import os

import torch.distributed as dist

alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}

# %% broken
os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
dist.init_process_group("gloo", **alone)
print("group of", dist.get_world_size())

# %% fixed
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", **alone)
print("group of", dist.get_world_size())

# %% signs
# ifa != nullptr\. Unable to find address for
# Unable to find address for: \S+
# Bootstrap : no socket interface found
# Unable to find interface for|No usable listening interface found
# maybe: makeDeviceFor\w+\(\): unsupported gloo device
# NET/Socket ?: [Nn]o interface found
