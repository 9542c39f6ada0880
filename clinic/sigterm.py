r"""SignalException: got signal: 15, because something ended the job.

class: launch
symptom: crash
runs on: one process
chapter: ch3_save_load
signature: SignalException: Process \w+ got signal: 15

You see: `Received 15 death signal, shutting down workers`, then `SignalException: Process
... got signal: 15`. From Slurm `CANCELLED AT ... DUE TO TIME LIMIT` or `DUE TO
PREEMPTION`; without a reason it was `scancel`, or another task of the step that failed. No rank has an error of its own.

Cause: signal 15, SIGTERM, is a polite request to end: the time limit of the queue, a
job with a higher priority, a spot machine that is taken back, a pod that is moved,
`kill`, or the failure of another machine of the job. torchrun passes it on to the
ranks, waits 30 seconds and kills what is left.

Cure: nothing is broken, so prepare for it. Ask for a warning before the end (Slurm:
`--signal=B:USR1@300`), pass it on to the ranks (`pkill -USR1 -f train.py` in the batch
script), and let them save and end by themselves; the next start resumes. Where no warning
comes, save in a handler for SIGTERM, in less than the 30 seconds.

Next time: `sacct -j JOB --format=State,Elapsed,Timelimit` or the pod's events say who asked.
If another machine failed first, its log has the reason.

Links: https://github.com/swiss-ai/Megatron-LM/issues/3 (a checkpoint before the time limit, under torchrun)
https://github.com/pytorch/pytorch/issues/150916 (an agent ended by kill: the words of both machines)
https://github.com/facebookincubator/submitit/issues/1613 (Slurm: DUE TO PREEMPTION)
"""

# %% broken: torchrun train.py
import os
import signal
import time

os.kill(os.getppid(), signal.SIGTERM)  # stands for the scheduler
time.sleep(5)
print("saved at step 1")

# %% fixed: torchrun train.py
import os
import signal
import time


def save(*_):
    raise SystemExit(print("saved at step 1"))


signal.signal(signal.SIGUSR1, save)
os.kill(os.getpid(), signal.SIGUSR1)  # stands for the warning
time.sleep(5)

# %% signs
# torch: DUE TO (?:TIME LIMIT|PREEMPTION|JOB REQUEUE|NODE FAILURE)
# echo: STEP \S+ ON \S+ CANCELLED AT|JOB \d+ ON \S+ CANCELLED AT && torchrun|torch[./]distributed|ProcessGroup|deepspeed|DeepSpeed|ightning|accelerate
# echo: got signal: 15\b
# echo: Received (?:15|Signals\.SIGTERM) death signal
