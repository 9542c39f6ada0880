r"""KeyError OMPI_COMM_WORLD_RANK: not started by mpirun.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: KeyError: 'OMPI_COMM_WORLD_RANK'

You see: a `KeyError` for `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` or `PMI_RANK`, at
the first line that asks for a rank.

Cause: each launcher has its own name for the rank. Open MPI's `mpirun` sets
`OMPI_COMM_WORLD_RANK`, MPICH's `PMI_RANK`, Slurm `SLURM_PROCID`, torchrun `RANK`. A
script that reads one of them works under that launcher only.

Cure: start it with the launcher that it was written for, or read the name of yours. For
torch alone `RANK`, `LOCAL_RANK` and `WORLD_SIZE` are enough.

Next time: `env | grep -i rank` under the same launcher shows which names it sets.

Links: https://github.com/kenshohara/3D-ResNets-PyTorch/issues/244 (started with python)
https://github.com/huggingface/transformers/issues/47373 (a script that reads both, under torchrun)
"""

# %% broken: torchrun train.py
import os

print(f"rank {os.environ['OMPI_COMM_WORLD_RANK']}\n", end="")  # one write

# %% fixed: torchrun train.py
import os

print(f"rank {os.environ['RANK']}\n", end="")  # one write

# %% signs
# KeyError: '?OMPI_COMM_WORLD_\w+
# maybe: KeyError: '?(?:PMI|PMIX|MV2_COMM_WORLD)_RANK
# with: environ\b|os\.py", line \d+, in __getitem__
