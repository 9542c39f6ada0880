r"""SignalException: got signal: 1, because the terminal closed.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: SignalException: Process \w+ got signal: 1

You see: hours after the start, `SignalException: ... got signal: 1`, also for jobs that
were started with `nohup`.

Cause: signal 1 is SIGHUP: the terminal or the ssh connection is gone. nohup sets that
signal to "ignore", but torchrun installs its own handler instead, passes the signal on
to the workers and stops.

Cure: start in `tmux`, `screen` or `systemd-run`, where no terminal closes. Or leave
SIGHUP out of the signals that torchrun handles: then nohup's setting stays (an option
of newer versions of torchrun).

Next time: the number in `got signal:` tells who ended the job: 1 a closed terminal, 2
Ctrl-C, 15 somebody's `kill` or the scheduler.

Links: https://github.com/pytorch/pytorch/issues/67538 (SIGHUP after an hour of training)
https://github.com/keyu-tian/SparK/issues/19 (started with nohup; tmux cured it)
https://github.com/pytorch/pytorch/pull/160690 (the option)
"""

# %% given
import signal

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does

# %% broken: torchrun train.py
import os
import signal
import time

os.kill(os.getppid(), signal.SIGHUP)  # stands for the terminal that closes
time.sleep(1)
print("still training")

# %% fixed: torchrun --signals-to-handle SIGTERM,SIGINT,SIGQUIT train.py
import os
import signal
import time

os.kill(os.getppid(), signal.SIGHUP)  # stands for the terminal that closes
time.sleep(1)
print("still training")

# %% signs
# got signal: 1\b
# closing signal SIGHUP
# Received (?:1|Signals\.SIGHUP) death signal
