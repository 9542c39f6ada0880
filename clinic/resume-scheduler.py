r"""The loss jumps after a restart: no optimizer or scheduler was saved.

class: silent wrong
symptom: silent
runs on: one process
chapter: ch3_save_load
signature: learning rate 1 after the restart, \S+ before
guard: state momentum_buffer of weight .* is missing; .* lr=1\.0, saved was 0\.001

You see: after a restart the loss jumps up and stays there for a while. The run ends
worse than one that was not interrupted.

Cause: a model's `state_dict` has only the weights. The learning rate, the momentum and
the epoch number live in the optimizer, the scheduler and the loop, so all of them start
from scratch.

Cure: save all of them, and the random state, in one file. Load the scheduler after the
optimizer.

Next time: print the learning rate before the first step of each run. To test resuming,
train four epochs in one go, and two plus two: the weights must be equal.

Links: https://github.com/lightly-ai/lightly-train/pull/301 (schedule starts again after resuming)
https://github.com/D-X-Y/NAS-Bench-201/issues/19 (resumed with a wrong learning rate: scheduler not saved)
"""

# %% given
from torch import nn
from torch.optim.lr_scheduler import StepLR


def build():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    return model, optimizer, StepLR(optimizer, step_size=1, gamma=0.1)


model, optimizer, scheduler = build()
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 1)).square().mean().backward()
    optimizer.step()
    scheduler.step()
before = scheduler.get_last_lr()[0]

# %% broken
torch.save(model.state_dict(), "checkpoint.pt")
model, optimizer, scheduler = build()
model.load_state_dict(torch.load("checkpoint.pt"))
print(f"goes on with learning rate {scheduler.get_last_lr()[0]:g}")

# %% fixed
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
states = {name: part.state_dict() for name, part in parts.items()}
torch.save(states, "checkpoint.pt")
model, optimizer, scheduler = build()
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
for name, state in torch.load("checkpoint.pt").items():
    parts[name].load_state_dict(state)
print(f"goes on with learning rate {scheduler.get_last_lr()[0]:g}")

# %% invariant: a restart does not change the learning rate or the momentum
after = optimizer.param_groups[0]["lr"]
assert after == before, f"learning rate {after:g} after the restart, {before:g} before"
assert optimizer.state, "no momentum after the restart"

# %% guarded
from allranks.guard import Guard

mark = Guard(model, optimizer).mark()
torch.save({"model": model.state_dict(), "mark": mark}, "checkpoint.pt")
model, optimizer, scheduler = build()
saved = torch.load("checkpoint.pt")
model.load_state_dict(saved["model"])
Guard(model, optimizer).resumed(saved["mark"])
