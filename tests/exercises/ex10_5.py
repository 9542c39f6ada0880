"""Answers to exercise 10.5 that the check must take or refuse."""


# %% right: torch's own AdamW on the piece, and every rank broadcasts its own
def ex10_5(weights, gradients, state, lr, betas, eps, weight_decay):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pieces = torch.cat([w.flatten() for w in weights]).tensor_split(world_size)
    row = torch.cat([g.flatten() for g in gradients]).to(torch.float32)
    dist.all_reduce(row)
    if "piece" not in state:
        state["piece"] = torch.nn.Parameter(pieces[rank].float())
        state["optimizer"] = torch.optim.AdamW(
            [state["piece"]], lr, betas, eps, weight_decay
        )
    state["piece"].grad = row.tensor_split(world_size)[rank] / world_size
    state["optimizer"].step()
    state["piece"].grad = None
    pieces[rank].copy_(state["piece"].detach())
    for owner, piece in enumerate(pieces):
        piece = piece.contiguous()
        if piece.numel():
            dist.broadcast(piece, owner)
        pieces[owner].copy_(piece)
    whole, start = torch.cat(pieces), 0
    for w in weights:
        w.copy_(whole[start : start + w.numel()].view(w.shape))
        start += w.numel()


# %% wrong: no copy in float32
#   state["t"] += 1
# + state["master"] = torch.cat([w.flatten() for w in weights])[mine].float()
# %% wrong: cuts the lower half off
# - piece = F.pad(master.bfloat16(), (0, size - len(master)))
# + cut = (master.view(torch.int32) & -65536).view(torch.float32)
# + piece = F.pad(cut.bfloat16(), (0, size - len(master)))
# %% wrong: every rank keeps all of it
# ~ rank * size, (rank + 1) * size => None
# - piece = F.pad(master.bfloat16(), (0, size - len(master)))
# + piece = F.pad(master.bfloat16(), (0, size * world_size - len(row)))
# + piece = piece[rank * size :][:size]
# %% wrong: the gradients are averaged in bfloat16
# - row = torch.cat([g.flatten() for g in gradients]).float()
# - dist.all_reduce(row)
# + row = torch.cat([g.flatten() for g in gradients])
# + dist.all_reduce(row)
# + row = row.float()
# %% wrong: steps on the rank's own gradients
# = if not state:
# =     state["copy"] = [w.float() for w in weights]
# =     state["adam"] = torch.optim.AdamW(state["copy"], lr, betas, eps, weight_decay)
# = for copy, g in zip(state["copy"], gradients):
# =     copy.grad = g.float()
# = state["adam"].step()
# = for w, copy in zip(weights, state["copy"]):
# =     w.copy_(copy)
# %% wrong: decays as Adam does
# - m.lerp_(g, 1 - betas[0])
# + g = g + weight_decay * master
# + m.lerp_(g, 1 - betas[0])
# - master.mul_(1 - lr * weight_decay)
# %% wrong: a sum of gradients, because Adam does not mind the scale
# ~ [mine] / world_size => [mine]
