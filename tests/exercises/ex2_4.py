"""Answers to exercise 2.4 that the check must take or refuse."""


# %% right: adds up what each of the other devices gets and gives, storage by storage
def ex2_4(module, output_bytes, num_devices):
    sent = received = 0
    seen = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        seen[tensor.data_ptr()] = tensor
    for _ in range(1, num_devices):
        for tensor in seen.values():
            sent += tensor.nbytes
            received += tensor.nbytes if tensor.requires_grad else 0
        sent += output_bytes / num_devices
        received += output_bytes / num_devices
    return sent, received


# %% wrong: forgets the buffers
# ~ size(module.buffers()) + share => share
# %% wrong: every element has four bytes
# ~ t.numel() * t.element_size => 4 * t.numel
# %% wrong: adds up the state dict, in which tied parameters stand twice
# ~ (module.parameters()) + size(module.buffers()) => (module.state_dict().values())
# %% wrong: sends everything to itself as well
# ~ num_devices - 1 => num_devices
# %% wrong: forward only: nothing of what backward moves
# - sent = size(module.parameters()) + size(module.buffers()) + share
# - return others * sent, others * (gradients + share)
# + sent = size(module.parameters()) + size(module.buffers())
# + return others * sent, others * share
