r"""An optimizer's state is loaded onto the wrong parameters.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch3_save_load
signature: encoder\.weight has the momentum of another
guard: state exp_avg of encoder\.weight .* is not what was saved

You see: the resumed run starts with a jump of the loss and recovers slowly.

Cause: `optimizer.load_state_dict` matches states by position, not by name. After layers
have changed places in the code, or in the list that the optimizer gets, each state goes
to the parameter that now stands there. Only a difference in shape would fail, and not
before the next `step`.

Cure: keep the order. To be safe against it, save with
`torch.distributed.checkpoint.state_dict.get_optimizer_state_dict`, which uses names.

Next time: pass `model.named_parameters()` to the optimizer: its state dict then has
`param_names`, which can be compared before loading.

Links: https://github.com/pytorch/pytorch/issues/1489 (states go to other parameters after a reordering)
https://github.com/PingoLH/CenterNet-HarDNet/issues/10 (order that differs between runs breaks resuming)
"""

# %% given
from torch import nn

model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("encoder", "decoder")})
encoder, decoder = (list(part.parameters()) for part in model.values())
optimizer = torch.optim.Adam([*encoder, *decoder])
for name, parameter in model.named_parameters():
    parameter.grad = torch.full_like(parameter, 1 if "encoder" in name else 5)
optimizer.step()
momentum = {n: optimizer.state[p]["exp_avg"] for n, p in model.named_parameters()}
torch.save(optimizer.state_dict(), "optimizer.pt")

# %% broken
resumed = torch.optim.Adam([*decoder, *encoder])
resumed.load_state_dict(torch.load("optimizer.pt"))
print(f"{len(resumed.state)} states loaded")

# %% fixed
resumed = torch.optim.Adam([*encoder, *decoder])
resumed.load_state_dict(torch.load("optimizer.pt"))
print(f"{len(resumed.state)} states loaded")

# %% invariant: each parameter gets back its own momentum
for name, parameter in model.named_parameters():
    got = resumed.state[parameter]["exp_avg"].flatten()[0].item()
    want = momentum[name].flatten()[0].item()
    figures = f"{got:.1f} instead of {want:.1f}"
    assert got == want, f"{name} has the momentum of another: {figures}"

# %% guarded
from allranks.guard import Guard

saved = {"optimizer": optimizer.state_dict(), "mark": Guard(model, optimizer).mark()}
torch.save(saved, "checkpoint.pt")
resumed = torch.optim.Adam([*decoder, *encoder])
saved = torch.load("checkpoint.pt")
resumed.load_state_dict(saved["optimizer"])
Guard(model, resumed).resumed(saved["mark"])
