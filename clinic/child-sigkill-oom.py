r"""exitcode: -9 (SIGKILL): the machine's memory ran out.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: exitcode  : -9

You see: `exitcode: -9` and `Signal 9 (SIGKILL)`, without a Python traceback, mostly
while the model or the data is loaded. With fewer processes, the same machine is large
enough.

Cause: signal 9 mostly comes from the kernel. Each rank loads its own copy into the
memory of the machine, so eight ranks need eight times as much. When the memory is used
up, the kernel kills the largest process, and torchrun only sees that the process is
gone. (Here we imitate the kernel: the demo kills itself at 32 MiB.)

Cure: map the file instead of reading it, as `mmap` does below; for a checkpoint, write
`torch.load(..., mmap=True)`. All ranks share the mapped pages, and the kernel can take
them back. Or load on one rank and broadcast.

Next time: `dmesg | grep -i "killed process"` names the victim and its size. In a
container, look at the memory limit (`oom_kill` in its `memory.events`). If neither
shows a kill, the signal came from a scheduler, or from torchrun, which sends it to
ranks that ignore SIGTERM.

Links: https://github.com/meta-llama/codellama/issues/118 (loading a model under WSL2)
https://github.com/lm-sys/FastChat/issues/521 (several ranks load a model of 7B into 256 GB)
"""

# %% given
from pathlib import Path

with open("model.bin", "wb") as file:
    file.truncate(2**26)
Path("kernel.py").write_text(r"""
import os, re, signal

def look():
    '''As the kernel does: end a process with more than 32 MiB of its own.'''
    with open("/proc/self/status") as file:
        own = int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1])
    if own > 2**15:
        os.kill(os.getpid(), signal.SIGKILL)
""")

# %% broken: torchrun train.py
import mmap

import kernel

with open("model.bin", "rb") as file:
    weights = file.read()
used = sum(weights[:: mmap.PAGESIZE])  # a byte of each page
kernel.look()
print("loaded", len(weights) >> 20, "MiB")

# %% fixed: torchrun train.py
import mmap

import kernel

with open("model.bin", "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
used = sum(weights[:: mmap.PAGESIZE])  # a byte of each page
kernel.look()
print("loaded", len(weights) >> 20, "MiB")

# %% signs
# Signal 9 \(SIGKILL\) received
# terminated with signal SIGKILL
# with: [Kk]illed process \d+
# with: [Oo]ut of memory: Kill
# died with <Signals\.SIGKILL: 9>|exited on signal 9 \(Killed\)
# with return code = -9\b
# torch: oom[-_]kill event|cgroup out-of-memory handler
# torch: exit code:? 137\b|exited with code 137\b|OOMKilled
# torch: killed due to the node running low on memory|due to memory pressure \(OOM\)
# torch: process is killed by SIGKILL by OOM killer
# torch: The node was low on resource: memory
# unless: did not complete successfully: exit code|returned a non-zero code
# \d+ Killed +(?:\w+=\S+ +)*(?:python|torchrun|accelerate|deepspeed)
# maybe: Out of memory: Killed process \d+ \((?:pt_main|python)
# exitcode *[:=]? *-9\b
# srun: error: .*: tasks? [-,\d]+: (?:Killed|Out Of Memory)
# maybe: Memory cgroup out of memory: Kill(?:ed)? process \d+,? \((?:pt_main|python)
