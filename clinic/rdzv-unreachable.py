r"""RendezvousConnectionError: nobody answers at the endpoint.

class: multi-node
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: RendezvousConnectionError

You see: all machines fail after a minute with `The connection to the C10d store has
failed`.

Cause: one torchrun hosts the store: the one on the machine that the endpoint names.
Each decides whether it is the host by comparing the endpoint with its own names and
addresses. If none recognises itself (behind NAT, in a container, through an alias), all
are clients of a server that nobody started. A firewall and a wrong address look the
same.

Cure: use a name or address that the machine itself knows, or say who hosts:
`--rdzv-conf is_host=1` on one machine, `is_host=0` on the others.

Next time: `nc -zv HOST PORT` from another machine while torchrun waits. "Refused" means
that nobody listens, silence means a firewall.

Links: https://github.com/pytorch/pytorch/issues/107021 (three machines, an IP address as endpoint)
https://github.com/pytorch/pytorch/issues/69197 (a host's name instead of its address cured it)
https://github.com/pytorch/pytorch/issues/67581 (torch 1.10: the inner exception is a connect that timed out)
"""

# %% broken: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-conf is_host=0,read_timeout=1 train.py
import os

print("machines:", os.environ["GROUP_WORLD_SIZE"])

# %% fixed: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-conf is_host={rank} train.py
import os

print("machines:", os.environ["GROUP_WORLD_SIZE"])

# %% signs
# The connection to the C10d store has failed
# RendezvousConnectionError(?!\.$)
# c10d_rendezvous_backend\.py", line \d+, in _create_tcp_store
# maybe: c10d_rendezvous_backend\.py", line \d+, in (?:get_state|set_state|_call_store)
