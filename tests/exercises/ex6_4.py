"""Answers to exercise 6.4 that the check must take or refuse."""

# %% right: hooks and detached sums, without classes; all_reduce by its own name
from torch.distributed import all_reduce


def ex6_4(x, up, down):
    def summed(tensor):
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        all_reduce(tensor)
        return tensor

    fork = x.view_as(x)
    if fork.requires_grad:
        fork.register_hook(summed)
    part = up(fork).relu() @ down.weight.T
    return part + (summed(part) - part).detach() + down.bias


# %% wrong: forgets the sum in backward
# ~ fork.register_hook(summed) => pass
# %% wrong: forgets the sum in forward
# = return down(up(x).relu())
# %% wrong: an all_reduce that autograd knows, which sums the gradient again
# + from torch.distributed.nn import functional as DF
# = part = up(x).relu() @ down.weight.T
# = return DF.all_reduce(part) + down.bias
# %% wrong: adds the bias on every rank
# ~ down.weight.T => down.weight.T + down.bias
# ~ () + down.bias => ()
# %% wrong: forgets the bias
# ~ () + down.bias => ()
# %% wrong: averages
# ~ all_reduce(tensor) => all_reduce(tensor, dist.ReduceOp.AVG)
# %% wrong: cuts autograd off, so that no part learns
# ~ return part + (summed(part) - part).detach() => return summed(part)
# %% wrong: sums the hidden gradients too, with an all_reduce per layer
# - return part + (summed(part) - part).detach() + down.bias
# + out = part + (summed(part) - part).detach() + down.bias
# + out.register_hook(lambda g: summed(g) / dist.get_world_size())
# + return out
# %% wrong: makes the bias smaller, so that it comes out right once it is summed
# ~ part = up(fork).relu() @ down.weight.T => down.bias.data /= dist.get_world_size()
# + part = down(up(fork).relu())
# ~ () + down.bias => ()
