"""Answers to exercise 8.2 that the check must take or refuse."""


# %% right: one message that carries the indices as floats, and one mask per rank
def ex8_2(gradient, residual, k):
    world_size = dist.get_world_size()
    total = (residual + gradient).reshape(-1)
    order = total.abs().argsort(descending=True)[:k]
    mask = torch.zeros_like(total, dtype=torch.bool)
    mask[order] = True
    message = torch.stack([order.double(), total[order].double()])
    messages = [torch.empty_like(message) for _ in range(world_size)]
    dist.all_gather(messages, message)
    mean = torch.zeros_like(total)
    for where, values in messages:
        mean[where.long()] += values.to(mean.dtype) / world_size
    residual.copy_(total.masked_fill(mask, 0).view_as(residual))
    return mean.view_as(gradient)


# %% wrong: keeps no residual
# ~ += gradient => = gradient.clone()
# %% wrong: leaves in the residual what it has sent
# - flat[index] = 0  # what is sent leaves the residual
# %% wrong: forgets what earlier steps have left
# ~ residual += gradient => residual.copy_(gradient)
# %% wrong: chooses by value, not by magnitude
# ~ abs().topk => topk
# %% wrong: adds up with an index that comes twice
# - mean.index_add_(0, torch.cat(indices), torch.cat(parts))
# + mean[torch.cat(indices)] += torch.cat(parts)
# %% wrong: sends the zeros, too
# = residual += gradient
# = flat = residual.view(-1)
# = index = flat.abs().topk(k).indices
# = mean = torch.zeros_like(flat)
# = mean[index] = flat[index]
# = flat[index] = 0
# = dist.all_reduce(mean)
# = return mean.view_as(gradient) / dist.get_world_size()
# %% wrong: takes away from the residual what all have sent, on average
# - flat[index] = 0  # what is sent leaves the residual
#   mean.index_add_(0, torch.cat(indices), torch.cat(parts))
# + flat -= mean / world_size
# %% wrong: asks the group itself
# = residual += gradient
# = flat = residual.view(-1)
# = index = flat.abs().topk(k).indices
# = sent = torch.zeros_like(flat).index_copy_(0, index, flat[index])
# = flat[index] = 0
# = dist.group.WORLD.allreduce([sent]).wait()
# = return sent.view_as(gradient) / dist.get_world_size()
