r"""all_reduce in forward: gradients don't reach the other ranks.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch8_1_custom_ops
signature: gradient \S+ instead of
guard: times the gradient of one process on the union

You see: the loss is right, to the last digit, but training takes a different course
than in one process. Statistics over all ranks (a mean, a normalization, a loss over
pairs) enter the forward pass through an all_reduce.

Cause: each rank's loss depends on what all ranks put into the sum. So a rank's numbers
get a gradient from every rank's loss, and backward has to add these up: the backward of
an all_reduce is an all_reduce. If it only passes its own gradient on, all others are
missing.

Cure: add up the gradients over the ranks in backward. Only if all ranks go on to compute
one and the same loss, as in Megatron's tensor parallelism, is the gradient of the sum
already the same everywhere, and passing it on is right.

Next time: run `gradcheck` across ranks: move one number on one rank, and see by how much
the sum of all ranks' losses changes.

Links: https://github.com/Dao-AILab/flash-attention/issues/1244 (which backward an all_reduce has)
https://github.com/pytorch/xla/issues/2989 (what torch's collectives do to gradients, and torch.distributed.nn's)
"""

# %% given
from torch import nn
from torch.nn.parallel import DistributedDataParallel

x = torch.tensor([[1.0], [2.0]]) + 4 * rank
y = torch.tensor([[1.0], [3.0]]) * (1 + rank)
model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
ddp = DistributedDataParallel(model)


def loss_of(h, y, mean):
    return ((h - mean) * y).mean()


# %% broken
class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


h = ddp(x)
loss_of(h, y, AllReduce.apply(h.mean()) / world_size).backward()
print(f"gradient {model.weight.grad.item():g}")


# %% fixed
class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return AllReduce.apply(gradient)


h = ddp(x)
loss_of(h, y, AllReduce.apply(h.mean()) / world_size).backward()
print(f"gradient {model.weight.grad.item():g}")

# %% invariant: the gradient is that of one process on all samples
union = [torch.empty_like(x) for _ in range(2 * world_size)]
dist.all_gather(union[:world_size], x)
dist.all_gather(union[world_size:], y)
x, y = torch.cat(union[:world_size]), torch.cat(union[world_size:])
alone = nn.Linear(1, 1, bias=False)
h = alone(x)
loss_of(h, y, h.mean()).backward()
got, want = model.weight.grad.item(), alone.weight.grad.item()
assert abs(got - want) < 1e-5, f"gradient {got:g} instead of {want:g}"

# %% guarded
from allranks.guard import Guard


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def backward(_batches):
    h = ddp(x)
    loss_of(h, y, AllReduce.apply(h.mean()) / world_size).backward()


def loss(model, batch):
    h = model(batch[:, :1])
    return loss_of(h, batch[:, 1:], h.mean())


watch = Guard(ddp)
watch.preflight(loss, torch.cat([x, y], 1), backward=backward)
