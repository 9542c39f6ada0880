r"""float16 gradients overflow: they are summed first, divided later.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch8_ddp_by_hand
signature: gradient inf instead of
guard: parameters are NaN on ranks 0, 1

You see: the loss becomes NaN after some hundred steps, but only on many ranks. Or, if a
gradient scaler watches, step after step is skipped and the scale falls.

Cause: the largest number in float16 is 65,504. The two gradients fit into it, but their
sum does not, so it is infinite, and half of infinity is no better. The more ranks, the
sooner it happens. A loss scale, which makes gradients larger, brings it nearer.

Cure: divide by the number of ranks before the sum, as torch's own `fp16_compress_hook`
does. Or take bfloat16, which has the range of float32. Dividing first has its price:
gradients that are small already may become zero, so some libraries divide by √W before
and by √W after.

Next time: look for inf in the gradients right after the reduction, before it reaches the
weights.

Links: https://github.com/pytorch/pytorch/pull/57410 (torch's hook divided too late until 2021)
https://github.com/horovod/horovod/issues/1699 (seen with hundreds of GPUs; dividing first may underflow)
https://github.com/pytorch/pytorch/issues/78774 (divide by √W before and after)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[40_000.0 - 8_000 * rank]])
model = nn.Linear(1, 1, bias=False)
ddp = DistributedDataParallel(model)


# %% broken
def hook(state, bucket):
    half = bucket.buffer().half()
    work = dist.all_reduce(half, async_op=True)
    future = work.get_future()
    return future.then(lambda done: done.value()[0].float() / world_size)


ddp.register_comm_hook(None, hook)
ddp(x).sum().backward()
print(f"gradient {model.weight.grad.item():g}")


# %% fixed
def hook(state, bucket):
    half = (bucket.buffer() / world_size).half()
    work = dist.all_reduce(half, async_op=True)
    future = work.get_future()
    return future.then(lambda done: done.value()[0].float())


ddp.register_comm_hook(None, hook)
ddp(x).sum().backward()
print(f"gradient {model.weight.grad.item():g}")

# %% invariant: the gradient is the mean over the ranks, to three digits
mean = x.clone()
dist.all_reduce(mean)
got, want = model.weight.grad.item(), (mean / world_size).item()
assert abs(got - want) < 1e-3 * want, f"gradient {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard


def hook(state, bucket):
    half = bucket.buffer().half()
    work = dist.all_reduce(half, async_op=True)
    future = work.get_future()
    return future.then(lambda done: done.value()[0].float() / world_size)


ddp.register_comm_hook(None, hook)
optimizer = torch.optim.Adam(ddp.parameters())
watch = Guard(ddp, optimizer)
for _ in range(2):  # the guard lets an infinite gradient pass: a scaler may skip it
    ddp(x).sum().backward()
    watch.step()
    optimizer.step()
