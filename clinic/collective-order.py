r"""Deadlock: ranks call the same collectives in different orders.

class: process group
symptom: hang
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 0 waits in `dist\.broadcast[\s\S]*rank 1 waits in `dist\.all_reduce

You see: no message at all. With a set, the order of strings even differs from run to
run: the same job hangs one day and works the next.

Cause: collectives carry no name. The first one that a rank calls meets the first one of
the others, whatever it is; here each rank waits for a partner that is in another call.

Cure: use one order on all ranks, by sorting or by going through a list that does not
depend on the rank's own data.

Next time: dump every rank's stack (`py-spy dump`): they wait in different calls.
`TORCH_DISTRIBUTED_DEBUG=DETAIL` makes the ranks raise, and names both calls.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/19106 (logged keys differ)
"""

# %% given
seen = {"best": 3.0, "loss": 2.0} if rank == 0 else {"loss": 1.0, "best": 0.0}

# %% broken
for name in seen:
    x = torch.tensor(seen[name])
    if name == "loss":
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)
    print(name, x.item())

# %% fixed
for name in sorted(seen):
    x = torch.tensor(seen[name])
    if name == "loss":
        dist.all_reduce(x)
    else:
        dist.broadcast(x, src=0)
    print(name, x.item())

# %% signs
# submitted to be reduced, gathered or broadcasted by subset of ranks
