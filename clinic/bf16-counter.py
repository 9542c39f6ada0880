r"""A bfloat16 counter stops at 256.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch10_precision
signature: accuracy \S+ instead of
beyond: The guard adds up the counts that it is given, and these are wrong before any rank sends them.

You see: the accuracy falls while the validation set grows, or the mean loss of an epoch
is far below the mean of its batches, and it all began with mixed precision.

Cause: the running total took the model's dtype. bfloat16 has eight significant bits, so
after 256 comes 258, and 256 + 1 is rounded back to 256. A total of larger amounts stops
later, when one of them is less than half a gap. float16 stops at 2048.

Cure: count in integers, and add up losses in float32 or float64, whatever the model
computes in.

Next time: print the dtype of each running total. A figure that is too good to be a
coincidence, such as 256, 512 or 2048, tells.

Links: https://github.com/pytorch/xla/pull/2425 (losses added up in bfloat16: the sum stands still, the number of steps does not)
https://github.com/jax-ml/ml_dtypes/issues/63 (sums of any length are 256)
https://github.com/google/CommonLoopUtils/pull/380 (768 ones have a mean of 0.334)
"""

# %% given
logits = torch.randn(400, 10).bfloat16()  # from a model under autocast
answers = logits.argmax(dim=1)  # all of them are right
hits = (logits.argmax(dim=1) == answers).to(logits.dtype)

# %% broken
correct = torch.zeros((), dtype=logits.dtype)
for hit in hits:
    correct += hit
dist.all_reduce(correct)
accuracy = correct.item() / (world_size * len(hits))
print(f"accuracy {accuracy:.2f}")

# %% fixed
correct = torch.zeros((), dtype=torch.float64)
for hit in hits:
    correct += hit
dist.all_reduce(correct)
accuracy = correct.item() / (world_size * len(hits))
print(f"accuracy {accuracy:.2f}")

# %% invariant: the accuracy is that of a list of all answers
right = [None] * world_size
dist.all_gather_object(right, (logits.argmax(dim=1) == answers).tolist())
want = sum(map(sum, right)) / sum(map(len, right))
assert accuracy == want, f"accuracy {accuracy:.2f} instead of {want:.2f}"
