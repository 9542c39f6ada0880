r"""Error waiting on exit barrier: machines end over 5 minutes apart.

class: multi-node
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: `Error waiting on exit barrier. Elapsed: 300.1... seconds` on a machine whose ranks
are done, after `Local worker group finished`.

Cause: when its ranks have ended, torchrun waits five minutes for the torchruns of the
other machines, so that the store does not go away under them. Another machine is still
busy (rank 0 evaluates or uploads for long after the last collective), has crashed, or
has taken the store with it.

Cure: end together: put a `dist.barrier()` after the last thing that only one rank does,
and give that group a timeout that fits. If this machine's ranks report success, their
work is done and saved: the message affects only the exit code.

Next time: compare the times of `Local worker group finished` on all machines. The
reason is on the machine that lacks it.

Links: https://github.com/pytorch/pytorch/issues/69520 (315 seconds, and the store had gone)
https://github.com/pytorch/pytorch/pull/195543 (where the 300 seconds stand in torch)
"""

# %% quoted
# INFO:torch.distributed.elastic.agent.server.api:Local worker group finished
# (SUCCEEDED). Waiting 300 seconds for other agents to finish
# ERROR:torch.distributed.elastic.agent.server.api:Error waiting on exit barrier. Elapsed:
# 315.7792458534241 seconds

# %% broken
train(model)
if dist.get_rank() == 0:
    evaluate(model)  # an hour; the others have ended
dist.destroy_process_group()

# %% fixed
train(model)
if dist.get_rank() == 0:
    evaluate(model)  # an hour; the others wait in the barrier
dist.barrier(group=patient)  # made with timeout=timedelta(hours=3)
dist.destroy_process_group()

# %% signs
# echo: Error waiting on exit barrier
# echo: in _?exit_barrier$
