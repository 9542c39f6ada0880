"""Answers to exercise 5.4 that the check must take or refuse."""


# %% right: gathers the values of all ranks as objects, and adds them up itself
def ex5_4(model):
    mine = dict(model.named_buffers())
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    for name, buffer in mine.items():
        values = [others[name] for others in every]
        mean = values[0]
        if buffer.is_floating_point():
            mean = torch.stack(values).mean(dim=0)
        buffer.copy_(mean)


# %% wrong: sums, and forgets to divide
# ~ buffer, dist.ReduceOp.AVG => buffer
# %% wrong: averages integers too
# ~ buffer.is_floating_point() => True
# %% wrong: broadcasts all, as DDP does
# ~ buffer.is_floating_point() => False
# %% wrong: takes the state_dict, which has the parameters and lacks what is not saved
# ~ .buffers => .state_dict().values
# %% wrong: knows only the buffers that are saved
# ~ for… => saved = model.state_dict()
# + for buffer in [b for name, b in model.named_buffers() if name in saved]:
# %% wrong: leaves counters and masks as they are
# - else:
# -     dist.broadcast(buffer, src=0)
# %% wrong: averages a copy
# ~ buffer, dist => buffer.double(), dist
# %% wrong: puts new tensors in place of the old ones
# = for module in model.modules():
# =     for name, buffer in module.named_buffers(recurse=False):
# =         setattr(module, name, buffer.clone())
# %% wrong: the largest of the counters
#       dist.all_reduce(buffer, dist.ReduceOp.AVG)
# + elif buffer.dtype is torch.bool:
# +     dist.broadcast(buffer, src=0)
# ~ dist.broadcast(buffer, src=0) => dist.all_reduce(buffer, dist.ReduceOp.MAX)
# %% wrong: reduces to rank 0, and everybody divides
# ~ dist.all… => dist.reduce(buffer, 0)
# + buffer /= dist.get_world_size()
# %% wrong: averages in bfloat16, which is faster
# ~ buffer, dist => short := buffer.bfloat16(), dist
# + buffer.copy_(short)
