r"""A restarted job begins at epoch 0 again.

class: launch
symptom: silent
runs on: one process
chapter: ch3_save_load
signature: epochs trained twice: 0, 1
beyond: The restarted job knows nothing of the old one, so to the guard it looks like a new training.

You see: the job survives a crash, exits with 0, but takes much longer. The loss curve
starts over in the middle of the log.

Cause: `--max-restarts` starts the whole script again, on all ranks. torchrun restarts
processes, but it does not remember what the model had learned.

Cure: save a snapshot (model, optimizer, epoch) at least every epoch, and load it at the
start if there is one.

Next time: log `os.environ["TORCHELASTIC_RESTART_COUNT"]` beside the epoch.

Links: https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html (the tutorial on snapshots)
"""

# %% broken: torchrun --max-restarts 1 train.py
import os
from pathlib import Path

snapshot = Path("snapshot")
start = 0
for epoch in range(start, 4):
    if epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)  # stands for a GPU that fails
    print("epoch", epoch)
    snapshot.write_text(f"{epoch}")

# %% fixed: torchrun --max-restarts 1 train.py
import os
from pathlib import Path

snapshot = Path("snapshot")
start = int(snapshot.read_text()) + 1 if snapshot.exists() else 0
for epoch in range(start, 4):
    if epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(1)  # stands for a GPU that fails
    print("epoch", epoch)
    snapshot.write_text(f"{epoch}")

# %% invariant: every epoch is trained once
epochs = [line.split()[-1] for line in text.splitlines() if "epoch" in line]
twice = sorted({epoch for epoch in epochs if epochs.count(epoch) > 1})
assert not twice, f"epochs trained twice: {', '.join(twice)}"

# %% signs
# with: will restart worker group
# with: Worker group FAILED\. \d+/\d+ attempts left
