r"""Gloo connectFullMesh failed: a host name resolves to 127.0.0.1.

class: multi-node
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: on one machine everything works. On two, `init_process_group("gloo")` fails
with `connectFullMesh failed ... Connection refused, remote=[127.0.0.1]`.

Cause: each rank tells the others its address, which gloo finds by resolving the
machine's own name. If `/etc/hosts` maps that name to 127.0.0.1 or 127.0.1.1, as
Debian's and Ubuntu's installers do, every machine sends the others to themselves.

Cure: name the network interface, by `GLOO_SOCKET_IFNAME=eth0` (and `NCCL_SOCKET_IFNAME`
for NCCL), or correct `/etc/hosts` on every machine.

Next time: `getent hosts $(hostname)` must print an address that the other machines can
reach; `ip -brief address` lists the interfaces.

Links: https://github.com/aws-samples/aws-do-eks/pull/69 (16 ranks, all of them announce 127.0.0.1)
https://github.com/pytorch/gloo/issues/223 (connect [127.0.1.1]: Connection refused)
https://github.com/ray-project/ray/issues/37461 (cured by a line of /etc/hosts)
"""

# %% quoted
# RuntimeError: Gloo connectFullMesh failed with
# [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed out connecting:
# SO_ERROR: Connection refused, remote=[127.0.0.1]:<port>
# (rank=8, size=16, local=[127.0.0.1])

# %% broken
import torch.distributed as dist

dist.init_process_group("gloo")

# %% fixed
import os

import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
dist.init_process_group("gloo")

# %% signs
# connectFullMesh failed.*(?:refused|127\.0\.)
# pair\.cc:\d+\] connect \[127\.0\.[01]\.1\]:\d+: Connection refused
# maybe: Unable to resolve hostname to a \(local\) address
# maybe: connectFullMesh failed
# maybe: pair\.cc:\d+\] connect \[\S+\]:\d+: Connection refused
# torch: SO_ERROR: Connection refused, remote=
# maybe: pair\.cc:\d+\] Connect timeout
