r"""RendezvousTimeoutError: two machines have different rendezvous ids.

class: multi-node
symptom: hang
runs on: 2 ranks
chapter: ch4_ranks
signature: RendezvousTimeoutError

You see: both machines wait as if the other were missing, although both run and the
network works. They end with `RendezvousTimeoutError`, or one of them with
`RendezvousConnectionError`, if the other hosted the store and gave up first.

Cause: the id separates jobs that share a store. Two ids are two jobs, and each waits
for its second machine.

Cure: use the same `--rdzv-id` everywhere: the scheduler's job number, not one that each
machine makes up (`$RANDOM`, the time).

Next time: print the whole command on each machine, after the shell has expanded it.

Links: https://docs.pytorch.org/docs/stable/elastic/quickstart.html (one id for all nodes)
"""

# %% given
import os

if rank == 0:  # a third machine hosts the store
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
where = [f"localhost:{store.port}" if rank == 0 else None]
dist.broadcast_object_list(where)
os.environ["PET_RDZV_ENDPOINT"] = where[0]

# %% broken: torchrun --nnodes 2 --rdzv-id job{rank} --rdzv-backend c10d --rdzv-conf is_host=0,join_timeout=1 train.py
import os

print("machines:", os.environ["GROUP_WORLD_SIZE"])

# %% fixed: torchrun --nnodes 2 --rdzv-id job --rdzv-backend c10d --rdzv-conf is_host=0 train.py
import os

print("machines:", os.environ["GROUP_WORLD_SIZE"])

# %% signs
# maybe: RendezvousTimeoutError
# maybe: RendezvousConnectionError
