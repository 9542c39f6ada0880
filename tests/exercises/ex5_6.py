"""Answers to exercise 5.6 that the check must take or refuse."""

# %% right: gradients are views of the buckets, and all_reduce goes by its own name
# + from torch.distributed import all_reduce, broadcast_object_list, get_world_size
# - for tensor in [*model.parameters(), *model.buffers()]:
# -     dist.broadcast(tensor.detach(), src=0)
# + state = [model.state_dict()]
# + broadcast_object_list(state, src=0)
# + model.load_state_dict(state[0])
#       buckets[-1].append(weight)
# + flats = [torch.zeros(sum(map(torch.numel, bucket))) for bucket in buckets]
# ~ flat = … => flat, sizes = flats[len(works)], [weight.numel() for weight in bucket]
# + for weight, part in zip(bucket, flat.split(sizes), strict=True):
# +     part.copy_(weight.grad.flatten()).div_(get_world_size())
# +     weight.grad = part.view_as(weight)
# ~ (dist… => all_reduce(flat, async_op=True))
# ~ work, flat, bucket => work
# - parts = flat.split([weight.numel() for weight in bucket])
# - for weight, part in zip(bucket, parts, strict=True):
# -     weight.grad.copy_(part.view_as(weight) / dist.get_world_size())
# %% wrong: an all_reduce per parameter
#   buckets, ready, works = [[]], set(), []
# + bucket_size = 1
# %% wrong: forgets that replicas must start equal
# - for tensor in [*model.parameters(), *model.buffers()]:
# -     dist.broadcast(tensor.detach(), src=0)
# %% wrong: parameters start equal, buffers do not
# ~ [*model.parameters(), *model.buffers()] => model.parameters()
# %% wrong: everything after backward
#   def finish():
# +     for weight in trainable:
# +         on_ready(weight)
# ~ weight.register_post_accumulate_grad_hook(on_ready) => pass
# %% wrong: all_reduce starts when the last gradient is there
# ~ while… => while len(ready) == len(trainable) and len(works) < len(buckets):
# %% wrong: buckets leave in the order in which they are full
# ~ while… => bucket = next(b for b in buckets if any(weight is w for w in b))
# + if ready.issuperset(bucket):
# - bucket = buckets[len(works)]  # the first that has not left
# %% wrong: works for one step only
# ~ in works => in works[:]
# - ready.clear()
# - works.clear()
# %% wrong: sums, and forgets to divide
# ~ (weight) / dist.get_world_size() => (weight)
# %% wrong: waits inside backward
# ~ flat, async_op=True => flat
# - work.wait()
# %% wrong: copies the results back before they are there
# - work.wait()
# %% wrong: forgets to copy the results back
# ~ weight.grad.copy… => part /= dist.get_world_size()
# %% wrong: fills the buckets from the first layer on
# ~ reversed(trainable) => trainable
# %% wrong: a bucket that is not full never leaves
# ~ (buckets) and => (buckets) - 1 and
# %% wrong: returns nothing
# - return finish
