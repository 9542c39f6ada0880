r"""1/2 clients joined: a machine never reports to the master.

class: multi-node
symptom: hang
runs on: one process
chapter: ch4_ranks
signature: DistStoreError: Timed out after \d seconds waiting for clients\. 1/2 clients joined

You see: with `--master-addr` the first machine waits without a word, and after 15
minutes says `1/2 clients joined`.

Cause: without `--rdzv-backend` torchrun uses the static rendezvous: machine 0 opens a
store and waits for the others to connect. The figures count machines, not ranks, and
the one that joined is the first machine itself.

Cure: start torchrun on every machine, each with its own `--node-rank`; or correct
`--nnodes`.

Next time: `--rdzv-conf timeout=60` while you debug. From the missing machine, `nc -zv
MASTER PORT` tells whether it could connect at all.

Links: https://github.com/Liuziyu77/Visual-RFT/issues/123 (1/3 clients joined after 901 seconds)
https://github.com/pytorch/pytorch/pull/111805 (since torch 2.2 the master fails, too)
"""

# %% broken: torchrun --nnodes 2 --node-rank 0 --master-addr localhost --master-port {port} --rdzv-conf timeout=1 train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])

# %% fixed: torchrun --nnodes 1 --node-rank 0 --master-addr localhost --master-port {port} --rdzv-conf timeout=1 train.py
import os

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])

# %% signs
# Timed out after \d+ seconds waiting for (?:clients|workers)
# \d+/\d+ (?:clients|workers) joined
