r"""Logging metrics in every step slows training down.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch5_ddp
signature: 300 collectives for the log of 100 steps instead of 10

You see: training without the logger is faster. On GPUs the gap is larger, because they
idle between the steps.

Cause: each metric is an all-reduce of its own, and `.item()` waits for it. On a GPU it
also waits for all kernels before it, so Python can no longer run ahead.

Cure: add up on the device, and every N steps reduce one stacked tensor.

Next time: profile a few steps, and look for many all-reduces of 4 bytes, and
`cudaStreamSynchronize` or `aten::item` between forward and backward.

Links: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (synchronization)
"""

# %% given
group = dist.distributed_c10d._get_default_group()
before = group._get_sequence_number_for_group()

# %% broken
for step in range(100):
    metrics = torch.tensor([2.0, 0.5, 10.0])  # loss, accuracy, norm
    mean = [0.0] * 3
    for i, metric in enumerate(metrics.split(1)):
        dist.all_reduce(metric)
        mean[i] = metric.item() / world_size
calls = group._get_sequence_number_for_group() - before
print("mean:", mean, "collectives:", calls)

# %% fixed
total = torch.zeros(3)
for step in range(100):
    metrics = torch.tensor([2.0, 0.5, 10.0])  # loss, accuracy, norm
    total += metrics
    if step % 10 == 9:
        dist.all_reduce(total)
        mean = (total / 10 / world_size).tolist()
        total.zero_()
calls = group._get_sequence_number_for_group() - before
print("mean:", mean, "collectives:", calls)

# %% invariant: one collective every ten steps
assert calls == 10, f"{calls} collectives for the log of 100 steps instead of 10"
