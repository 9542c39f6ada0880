r"""exitcode: -11 (SIGSEGV): a rank dies of a segmentation fault.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Signal 11 \(SIGSEGV\) received

You see: `exitcode: -11` and `Signal 11 (SIGSEGV) received by PID` in torchrun's box,
and no traceback. `Fatal Python error` is printed here only because the fault handler is
switched on; the log goes on with `File "native.py", line 7 in first`.

Cause: native code read memory that does not belong to the process: an extension built
for a different version of torch or CUDA, a data loader's library, a driver. Python can
no longer raise, and torchrun sees only how the process ended. (The demo crashes on
purpose: it reads the first number of an empty array through its address, which is 0.)

Cure: find the line, then stop passing it what it cannot handle, or rebuild or replace
the library that it calls.

Next time: `PYTHONFAULTHANDLER=1 torchrun ...` prints the Python stacks at the crash;
the topmost frame is the call that crashed. With many ranks, read the stack of the one
under "Root Cause". For frames in C: `ulimit -c unlimited`, then `gdb python core`. If
nothing looks suspicious, check whether one process with `num_workers=0` still dies.

Links: https://github.com/NVIDIA/Megatron-LM/issues/1880 (exitcode -11 and an empty box)
https://github.com/pytorch/pytorch/issues/61839 (the words of torch.distributed.launch)
https://github.com/pytorch/translate/pull/287 (what the fault handler adds to it)
"""

# %% given
from pathlib import Path

Path("native.py").write_text('''
from ctypes import c_float

def first(numbers):
    """What an extension does: take an address, and trust it."""
    address, count = numbers.buffer_info()
    return c_float.from_address(address).value
''')

# %% broken: PYTHONFAULTHANDLER=1 torchrun train.py
from array import array

import native

share = array("f", [])  # fewer files than ranks: none for this one
print("first:", native.first(share))

# %% fixed: PYTHONFAULTHANDLER=1 torchrun train.py
from array import array

import native

share = array("f", [])  # fewer files than ranks: none for this one
print("first:", native.first(share) if share else None)

# %% signs
# maybe: Signal 11 \(SIGSEGV\) received
# maybe: terminated with signal SIGSEGV
# maybe: died with <Signals\.SIGSEGV: 11>|exited on signal 11 \(Segmentation fault\)
# maybe: with return code = -11\b
# maybe: exitcode *[:=]? *-11\b
# maybe: Caught signal 11 \(Segmentation fault
# maybe: \d+ Segmentation fault +(?:\(core dumped\) +)?\S*(?:python|torchrun)
# maybe: srun: error: .*: tasks? [-,\d]+: Segmentation fault
