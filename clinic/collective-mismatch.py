r"""Detected mismatch between collectives: the ranks' calls differ.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: Detected mismatch between collectives on ranks

You see: with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, both ranks raise before the collective
and each names its own and the other's call. Without it, they wait for each other.

Cause: one rank takes a different branch: an `if rank == 0`, a metric that is only
logged where there is a value, a dict whose keys come in a different order. The n-th
collective of a group must be the same one on every rank.

Cure: make the same calls in the same order everywhere, and decide by a value that all
ranks share.

Next time: `DETAIL` compares type, shape, dtype and sequence number of each collective
over a helper group. It is read when `torch.distributed` is imported, so set it in the
environment; it costs an extra exchange per call, so unset it afterwards.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/19106 (logged keys differ)
https://github.com/pytorch/pytorch/issues/78022 (an older wording names one rank only)
"""

# %% given
dist.set_debug_level(dist.DebugLevel.DETAIL)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
group = dist.new_group()
loss, best = torch.ones(1) * rank, torch.zeros(1)

# %% broken
if rank == 0:
    dist.all_reduce(loss, group=group)
dist.broadcast(best, src=0, group=group)
print("loss:", loss.item())

# %% fixed
dist.all_reduce(loss, group=group)
dist.broadcast(best, src=0, group=group)
print("loss:", loss.item())

# %% signs
# Collectives differ in the following aspects:\s+(?:Op type|Sequence number)
# is running (?:inconsistent )?collective: CollectiveFingerPrint(?!.*aspects:\s+Tensor Tensor dtypes)
# NCCL WARN Mismatched collective detected
# maybe: Detected mismatch between collectives on ranks(?!.*aspects:\s+Tensor Tensor dtypes)
