r"""KeyError LOCAL_RANK: the script was not started by torchrun.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: KeyError: 'LOCAL_RANK'

You see: a `KeyError` at the first line that asks for a rank.

Cause: torchrun puts `LOCAL_RANK` into the environment of each process that it starts.
Python alone, an IDE's run button or `srun` do not.

Cure: start it with torchrun. A script can also ask for that in one clear sentence, as
every script of this book does.

Next time: `python -c "import os; print(os.environ.get('LOCAL_RANK'))"` under the same
launcher.

Links: https://github.com/OpenLMLab/LOMO/issues/31 (no launcher; it sets the variable, says the author)
https://github.com/Theodore-PKU/MC-DDPM/issues/1 (cured by starting it with a launcher)
"""

# %% broken: python train.py
import os

print(f"rank {os.environ['LOCAL_RANK']}\n", end="")  # one write

# %% fixed: torchrun --nproc-per-node 2 train.py
import os

print(f"rank {os.environ['LOCAL_RANK']}\n", end="")  # one write

# %% signs
# KeyError: '?LOCAL_RANK\b'?
# maybe: int\(os\.(?:environ\.get|getenv)\(.LOCAL_RANK
# LOCAL_RANK environment variable, it is set by the
# LOCAL_RANK[`'\"]? (?:environment variable )?(?:is |was )?(?:not (?:set|found|defined)|must be set|expected)
