r"""RendezvousTimeoutError on Slurm: torchrun ran on one machine only.

class: multi-node
symptom: hang
runs on: one process
chapter: ch4_ranks
signature: RendezvousTimeoutError

You see: two machines are allocated, one prints nothing at all, and after ten minutes
torchrun fails with `RendezvousTimeoutError`. Or at once: `Unsupported nproc_per_node
value: 4(x2)`.

Cause: sbatch runs the script once, on the first machine. A plain `torchrun --nnodes 2` in
it starts one agent, which waits for a second that nobody starts. (Here `srun` is a stand-in of
our own, which starts the command twice.) `4(x2)` is Slurm's short way to write "4 on each of 2 machines" in
`SLURM_TASKS_PER_NODE`, and torchrun wants a number.

Cure: `#SBATCH --ntasks-per-node=1` and `srun torchrun ...`: srun starts one agent on each
machine, and each agent starts its ranks. `--nproc-per-node` is a number, such as
`$SLURM_GPUS_ON_NODE`, and `--rdzv-endpoint` is one machine for all, the first line of
`scontrol show hostnames`, with one port for all: `$RANDOM` after srun differs.

Next time: `srun hostname` in the same script must print each machine once.

Links: https://github.com/awslabs/sockeye/issues/1039 (srun torchrun, or simply torchrun?)
https://github.com/princeton-nlp/ProLong/issues/9 (several machines by sbatch)
"""

# %% given
from pathlib import Path

Path("srun.py").write_text("""
import subprocess
import sys

command = [sys.executable, "-m", "torch.distributed.run", *sys.argv[2:]]
agents = [subprocess.Popen(command) for machine in range(2)]
raise SystemExit(max(agent.wait() for agent in agents))
""")

# %% broken: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-conf join_timeout=1 train.py
import os

print(f"machines: {os.environ['GROUP_WORLD_SIZE']}\n", end="")

# %% fixed: python -m srun torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} train.py
import os

print(f"machines: {os.environ['GROUP_WORLD_SIZE']}\n", end="")

# %% signs
# Unsupported nproc_per_node value: \d+\(x\d+\)|invalid literal for int\(\) with base 10: '\d+\(x\d+\)'
# maybe: RendezvousTimeoutError && SLURM_|sbatch|slurmstepd|slurm_script
