r"""Only rank 0 calls all_reduce for a metric.

class: DDP
symptom: hang
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 0 waits in `dist\.all_reduce\(correct\)`

You see: the job hangs at the first log line, without a message, until the group's
timeout. If the other ranks go on to a collective of their own, the two are paired: a
wrong number, a crash (gloo), or a hang at some later place.

Cause: `all_reduce`, `gather`, `compute()` of a distributed metric: each of them is a
call that all ranks must make. Under `if rank == 0` only one makes it.

Cure: move the collective out of the `if`, and leave only the `print` inside.

Next time: have every rank write its stack: one waits in a collective that the others
never call. On NCCL, `TORCH_DISTRIBUTED_DEBUG=DETAIL` also compares the operations, and
says which rank was in which.

Links: https://github.com/alan-turing-institute/autocast/pull/386 (a collective save behind is_global_zero hangs)
"""

# %% given
correct = torch.tensor(3.0 + rank, device=device)

# %% broken
if rank == 0:
    dist.all_reduce(correct)
    print("correct:", correct.item())
print("next epoch")

# %% fixed
dist.all_reduce(correct)
if rank == 0:
    print("correct:", correct.item())
print("next epoch")

# %% signs
# maybe: Detected mismatch between collectives on ranks\. .*OpType=ALLREDUCE.*OpType=BARRIER
# maybe: Detected mismatch between collectives on ranks\. .*OpType=BARRIER.*OpType=ALLREDUCE
