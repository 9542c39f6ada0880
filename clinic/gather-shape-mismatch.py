r"""A gather aborts: the last batch is shorter on one rank.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: rank 1 was killed by SIGABRT[\s\S]*op\.preamble\.length <= op\.nbytes

You see: after an evaluation, the rank with the shorter tensor is aborted (exit code -6,
no traceback). A rank with a longer one goes on with rows that no rank has sent, or
reports a reset connection. NCCL aborts nothing, but hangs or returns garbage rows.

Cause: `all_gather` takes the size of every other tensor from the buffers that you give
it, and nothing checks that the others send that much. If a rank sends less, the rest of
the buffer stays as it was, which is garbage after `torch.empty`; if it sends more, the
process is aborted.

Cure: gather the lengths, pad to the longest, gather the tensors, and cut them again. Or
evaluate on whole batches. Unlike gloo, NCCL also accepts buffers of the true lengths.

Next time: print the shape on every rank before the call. With `DETAIL`, the error names
the shapes.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/7773 (it freezes; how to pad)
https://github.com/pytorch/pytorch/issues/23299 (the wish for a gather of unequal lengths)
"""

# %% given
preds = torch.ones(6 - 3 * rank) * rank  # rank 1 has a shorter batch

# %% broken
found = [torch.zeros_like(preds) for _ in range(world_size)]
dist.all_gather(found, preds)
print(len(torch.cat(found)), "rows")

# %% fixed
lengths = [torch.tensor(0) for _ in range(world_size)]
dist.all_gather(lengths, torch.tensor(len(preds)))
padded = torch.nn.functional.pad(preds, (0, max(lengths) - len(preds)))
found = [torch.zeros_like(padded) for _ in range(world_size)]
dist.all_gather(found, padded)
found = [part[:n] for part, n in zip(found, lengths, strict=True)]
print(len(torch.cat(found)), "rows")

# %% signs
# maybe: op\.preamble\.length <= op\.nbytes
# with: all_gather|allgather
# All tensor operands to scatter/gather must have the same
