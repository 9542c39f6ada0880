r"""RendezvousTimeoutError: a machine never joins the rendezvous.

class: multi-node
symptom: hang
runs on: one process
chapter: ch4_ranks
signature: RendezvousTimeoutError

You see: `torchrun --nnodes 2` prints nothing and starts nothing. After ten minutes it
fails with `RendezvousTimeoutError`, which does not say who is missing.

Cause: the agents meet before any of your code runs. Each waits until `--nnodes` of them
are there. The second machine has not started, has crashed, sits in another partition's
queue or went to another endpoint.

Cure: start it; or ask only for the machines that are there, as here. `--nnodes 1:2`
begins with one machine and lets the second join when it comes.

Next time: while you debug, `--rdzv-conf join_timeout=60` fails in a minute instead of
ten. With `LOGLEVEL=INFO` in its environment torchrun says when it begins to wait.

Links: https://github.com/ymcui/Chinese-LLaMA-Alpaca-2/issues/274 (two machines; only a RendezvousTimeoutError)
https://github.com/facebookresearch/av_hubert/issues/19 (several nodes; the same error without a word)
"""

# %% broken: torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-conf join_timeout=1 train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])

# %% fixed: torchrun --nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:{port} train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])

# %% signs
# RendezvousTimeout(?:Error|Exception)(?!\.$)
# echo: RendezvousClosedError
