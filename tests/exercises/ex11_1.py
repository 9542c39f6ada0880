"""Answers to exercise 11.1 that the check must take or refuse."""


# %% right: sets of storages
def ex11_1(model, optimizer):
    def total(tensors):
        seen, num_bytes = set(), 0
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                num_bytes += len(storage)
        return num_bytes

    states = [list(state.values()) for state in optimizer.state.values()]
    return dict(
        weights=total(model.parameters()),
        gradients=total(p.grad for p in model.parameters() if p.grad is not None),
        optimizer=total(sum(states, [])),
        buffers=total(model.buffers()),
    )


# %% wrong: counts tied weights as often as they are used
# - "weights": num_bytes(model.parameters()),
# + "weights": sum(p.nbytes for _, p in model.named_parameters(remove_duplicate=False)),
# %% wrong: forgets the buffers
# - "buffers": num_bytes(model.buffers()),
# + "buffers": 0,
# %% wrong: takes for granted that each weight has a gradient
# - "gradients": num_bytes(p.grad for p in model.parameters()),
# + "gradients": num_bytes(model.parameters()),
# %% wrong: returns a list
# = return [1, 2, 3, 4]
