r"""The client socket has timed out: nobody listens at MASTER_PORT.

class: process group
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: The client socket has timed out after 500ms while trying to connect to

You see: all ranks but rank 0 wait in silence, and finally report that they cannot
connect to MASTER_ADDR and MASTER_PORT: after 30 minutes in `init_process_group` (10
with NCCL), 15 under torchrun, half a second here. Rank 0 waits too, and says that
clients are missing.

Cause: the store is not where the rank looks for it: a port other than rank 0's, a
MASTER_ADDR that is this machine itself (`localhost` on the second node), a firewall, or
a rank 0 that died before it listened. The client tries again until the timeout, in case
rank 0 is late.

Cure: use the same MASTER_ADDR and MASTER_PORT everywhere, and open the port between the
nodes.

Next time: `nc -zv $MASTER_ADDR $MASTER_PORT` from every node while rank 0 waits.

Links: https://github.com/pytorch/pytorch/issues/105782 (timed out after 900 s)
https://github.com/pytorch/pytorch/issues/46800 (rank 0 runs on another node)
"""

# %% given
import socket
from datetime import timedelta

import torch.distributed as dist

limit = timedelta(seconds=0.5)
server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
nobody = socket.socket()
nobody.bind(("localhost", 0))  # taken, but nobody listens
wrong_port = nobody.getsockname()[1]

# %% broken
store = dist.TCPStore("localhost", wrong_port, is_master=False, timeout=limit)
store.set("hello", "from this rank")
print(store.get("hello").decode())

# %% fixed
store = dist.TCPStore("localhost", server.port, is_master=False, timeout=limit)
store.set("hello", "from this rank")
print(store.get("hello").decode())

# %% signs
# (?:Error|exception): The client socket has timed out after \d+ ?m?s while trying to connect to
# The client socket has failed to connect to any network address of
# maybe: The client socket has failed to connect to(?!.*errno: 22\b)
# maybe: connect\(\) timed out\. Original|RuntimeError: connect\(\) timed out
# maybe: RuntimeError: Connection (?:timed out|refused)
# maybe: (?:errno: 113 - |RuntimeError: |[Nn][Cc][Cc][Ll].*)No route to host
# maybe: The client socket has timed out after \d+ ?m?s while trying to connect to
# maybe: Connect to \S+ failed ?: |Call to connect returned|socketStartConnect
# maybe: Call to connect failed|[Nn]ccl.*Connection refused
