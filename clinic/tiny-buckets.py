r"""DDP's buckets are so small that every tensor is sent alone.

class: performance
symptom: slow
runs on: 2 ranks
chapter: ch5_ddp
signature: 16 buckets for 2 MB of gradients instead of at most 2

You see: steps that are slower than with the default, the more so the more layers the
model has. A profile shows one `all_reduce` for each tensor.

Cause: `bucket_cap_mb` is the size of DDP's messages. Each message costs a fixed time
before its first byte, the latency, so many small ones pay it many times. A tensor is
never cut, so if the cap is below the size of a layer, every layer travels alone, as in
a loop that reduces each `p.grad` by hand. A bucket that is too large leaves nothing to
overlap with backward.

Cure: keep the default (25 MB, and a first bucket of 1 MB). For a large model on a fast
network measure larger ones, 100 MB and more; nobody needs smaller ones.

Next time: `ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]` after a few steps lists
the buckets in bytes.

Links: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html (bucket_cap_mb)
https://github.com/pytorch/pytorch/issues/118421 (maintainers would rather make the default larger)
https://github.com/pytorch/pytorch/issues/48880 (why buckets have other sizes than the limit)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

group = dist.distributed_c10d._get_default_group()
layers = [nn.Linear(181, 181, bias=False) for _ in range(16)]  # 2 MB of float32
model, x = nn.Sequential(*layers), torch.ones(1, 181)

# %% broken
ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
for _ in range(3):  # the buckets get their final order in the second step
    before = group._get_sequence_number_for_group()
    ddp(x).sum().backward()
buckets = group._get_sequence_number_for_group() - before
print("buckets:", buckets)

# %% fixed
ddp = DistributedDataParallel(model)
for _ in range(3):  # the buckets get their final order in the second step
    before = group._get_sequence_number_for_group()
    ddp(x).sum().backward()
buckets = group._get_sequence_number_for_group() - before
print("buckets:", buckets)

# %% invariant: 2 MB of gradients travel in a bucket or two
assert buckets <= 2, f"{buckets} buckets for 2 MB of gradients instead of at most 2"
