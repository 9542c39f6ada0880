r"""Wait timeout: only the members of a group call new_group.

class: process group
symptom: crash
runs on: 3 ranks
chapter: ch7_collectives
signature: ranks 0–1: torch\.distributed\.DistStoreError: wait timeout after 1000ms, keys: /\S+//2//

You see: the subset's group works. The next `new_group`, perhaps in a library and much
later, waits for 30 minutes (here one second). Neither a short timeout of the default
group nor `DETAIL` ends it, since a new group has a timeout of its own.

Cause: you don't name your groups. Each rank counts its calls of `new_group` instead,
and the ranks find each other in the store under that number. A rank that skipped a call
is one behind from then on, so it looks for its partners under a different number.

Cure: every rank creates every group, in the same order, member or not, and uses those
that it is in. Or give `use_local_synchronization=True`, which takes the name from the
members. With torch 2.15 give it to all groups then: such a group advances its members'
count, and a later one without it waits in the same way.

Next time: `new_group(..., timeout=timedelta(seconds=10))` turns the hang into a
`DistStoreError` whose missing key contains the group's number.

Links: https://docs.pytorch.org/docs/stable/distributed.html (new_group: all processes)
"""

# %% given
from datetime import timedelta

port = torch.tensor(0)
if rank == 0:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port += store.port
dist.broadcast(port, src=0)
if rank > 0:
    store = dist.TCPStore("localhost", port.item(), is_master=False)
dist.destroy_process_group()  # made anew with a store as torchrun gives
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
limit = timedelta(seconds=1 if rank < 2 else 30)

# %% broken
if rank in (0, 1):
    pair = dist.new_group([0, 1])
everyone = dist.new_group(timeout=limit)
if rank == 0:
    print("members:", dist.get_process_group_ranks(everyone))

# %% fixed
pair = dist.new_group([0, 1])
everyone = dist.new_group(timeout=limit)
if rank == 0:
    print("members:", dist.get_process_group_ranks(everyone))

# %% signs
# maybe: wait timeout after \d+ms, keys: /\S+//\S+//\S+/\d
# with: in new_group
