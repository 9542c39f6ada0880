r"""Ranks reduce tensors of different sizes.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: killed by SIGABRT[\s\S]*op\.preamble\.length <= op\.nbytes

You see: one rank is gone with exit code -6 and no Python traceback. The others complain
that their connection was closed. With NCCL there is no message: the ranks hang, or the
tensor holds garbage.

Cause: a collective does not compare shapes; every rank sends as many bytes as it has.
gloo notices that more bytes arrive than it has room for and aborts the process, below
Python. The last batch of an epoch and a vocabulary that was counted per rank are the
usual reasons.

Cure: give every rank the same shape: pad to the longest, or drop the last batch.

Next time: print the shape on each rank before the collective. A line that begins with
`terminate called` comes from the rank that died first; `Connection reset` is the echo.

Links: https://github.com/NVIDIA/nccl/issues/1394 (gloo aborts; NCCL hangs or goes on)
https://github.com/NVIDIA/nccl/issues/1417 (NCCL: which sizes hang, which are wrong)
"""

# %% broken
batch = torch.ones(4 + 4 * rank)  # rank 1 has a longer one
dist.all_reduce(batch)

# %% fixed
length = torch.tensor([4 + 4 * rank])
dist.all_reduce(length, op=dist.ReduceOp.MAX)
batch = torch.zeros(length.item())
batch[: 4 + 4 * rank] = 1
dist.all_reduce(batch)
print(batch.tolist())

# %% signs
# op\.preamble\.length <= op\.nbytes
# Received data size doesn't match expected size
# maybe: [Mm]essage truncated ?: receiv(?:ed|ing) \d+ bytes instead of
# maybe: Collectives differ in the following aspects:\s+Tensor Tensor shapes
