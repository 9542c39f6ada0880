"""Answers to exercise 11.3 that the check must take or refuse."""


# %% right: saved-tensor hooks that forget
def ex11_3(block, x):
    state, made, order = torch.get_rng_state(), [], iter(range(10**6))
    inner = []

    def pack(tensor):
        if tensor is x or isinstance(tensor, nn.Parameter):
            return tensor
        return next(order)

    def again():
        now = torch.get_rng_state()
        torch.set_rng_state(state)

        def note(tensor):
            if not (tensor is x or isinstance(tensor, nn.Parameter)):
                made.append(tensor.detach())
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t)
        with torch.enable_grad(), hooks:
            inner.append(block(x))
        torch.set_rng_state(now)

    def unpack(saved):
        if torch.is_tensor(saved):
            return saved
        if not made:
            again()
        return made[saved]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return block(x)


# %% wrong: other dice
# - torch.set_rng_state(ctx.state)
# %% wrong: leaves the generator where the second run ends
# - torch.set_rng_state(now)
# %% wrong: the weights are not among its inputs
# ~ return Again.apply(x, *weights) => return Again.apply(x)
# %% wrong: no checkpoint at all
# = return block(x)
# %% wrong: asks torch
# = return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
# %% wrong: runs the block without a graph
# ~ with torch.enable_grad(): => if True:
