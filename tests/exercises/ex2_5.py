"""Answers to exercise 2.5 that the check must take or refuse."""


# %% right: real copies, whose gradients hooks bring home
def ex2_5(module, batch, devices):
    def bring(own):
        def hook(p):
            grad = p.grad.to(own.device)
            own.grad = grad if own.grad is None else own.grad + grad
            p.grad = None

        return hook

    outputs = []
    for i, (device, shard) in enumerate(zip(devices, batch.chunk(len(devices)))):
        replica = module if i == 0 else copy.deepcopy(module).to(device)
        for own, p in zip(module.parameters(), replica.parameters()):
            if i and p.requires_grad:
                p.register_post_accumulate_grad_hook(bring(own))
        outputs.append(replica(shard.to(device)).to(devices[0]))
    return torch.cat(outputs)


# %% wrong: copies, whose gradients stay with the copies
# ~ {name… => module if device == devices[0] else copy.deepcopy(module).to(device)
# ~ torch.func.functional_call(… => replica(shard.to(device))
# %% wrong: carries the module itself from device to device
# ~ torch.func.functional_call(… => module.to(device)(shard.to(device))
# %% wrong: detaches what it sends
# ~ dict(… => module.state_dict()
# %% wrong: everything on the first device
# = return module(batch.to(devices[0]))
# %% wrong: copies that are kept, with the weights of the first call
# + replicas = {}
# ~ (device) => (device) + 0
# + replica = replicas.setdefault((device, id(module)), replica)
# %% wrong: parameters only, so that buffers stay on the first device
# ~ | dict(module.named_buffers()) =>
# %% wrong: clones the buffers, so that the running mean never moves
#   replica = {name: tensor.to(device) for name, tensor in tensors.items()}
# + replica |= {n: b.clone().to(device) for n, b in module.named_buffers()}
# %% wrong: torch's own
# = return nn.DataParallel(module, devices)(batch.to(devices[0]))
# %% wrong: torch's own function, by its own name
# + from torch.nn.parallel import data_parallel
# = return data_parallel(module, batch.to(devices[0]), devices)
