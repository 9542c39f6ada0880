r"""A sum of gradients in float16 that overflows with more ranks.

class: silent wrong
symptom: silent
runs on: 4 ranks
chapter: ch10_precision
signature: gradient inf instead of
beyond: The guard leaves infinite gradients to the scaler, since a step that is skipped now and then is no mistake.

You see: the loss becomes NaN, or the gradient scaler skips almost every step, on 64
ranks, while the same code trains on 8. Each rank's own gradient is finite.

Cause: gradients are compressed to float16, added up over the ranks, and only then
divided. float16 ends at 65504, so four gradients of 20,000 are already too much, and
the loss scale makes them that large.

Cure: divide first, or by √W before and √W after, since numbers that become too small
are lost as well. torch's own `fp16_compress_hook` divides first. bfloat16 has float32's
range, so its sums do not overflow.

Next time: after the reduction look for inf in gradients, on the largest world size that
you will use.

Links: https://github.com/pytorch/pytorch/pull/57410 (torch's float16 hook: division moved before the sum)
https://github.com/horovod/horovod/issues/1699 (a large BERT on hundreds of GPUs)
https://github.com/facebookresearch/fairscale/pull/565 (why FSDP divides twice, before and after)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)
x = torch.tensor([[20_000.0]])  # under a loss scale, gradients are that large


# %% broken
def average(state, bucket):
    half = bucket.buffer().half()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float() / world_size)


ddp.register_comm_hook(None, average)
ddp(x).sum().backward()
print(f"gradient {model.weight.grad.item():g}")


# %% fixed
def average(state, bucket):
    half = (bucket.buffer() / world_size).half()
    future = dist.all_reduce(half, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].float())


ddp.register_comm_hook(None, average)
ddp(x).sum().backward()
print(f"gradient {model.weight.grad.item():g}")

# %% invariant: the gradient is the mean over the ranks, taken in float64
mean = x.double().sum()
dist.all_reduce(mean)
got, want = model.weight.grad.item(), mean.item() / world_size
assert abs(got - want) <= 1e-3 * want, f"gradient {got:g} instead of {want:g}"
