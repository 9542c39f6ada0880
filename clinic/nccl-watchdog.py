r"""Watchdog caught collective operation timeout: a rank never joined.

class: process group
symptom: hang
runs on: quoted
chapter: ch4_ranks

You see: ten minutes of nothing, then this line on every rank that waited, and all
processes are aborted. The rank that caused it says something else, or nothing.

Cause: the ranks have diverged: one rank is in another collective, has died, or is still
preparing data, saving or evaluating. NCCL's kernels wait on the GPU, until one of
torch's threads, the watchdog, sees that they have run for longer than the group's
timeout.

Cure: find the rank that did not come, and let every rank make the same calls. Do rank
0's long work before the group is made. Or let the other ranks wait in a gloo group: it
has its own timeout and no watchdog. Raise the timeout of NCCL's group only if its
collectives are really that slow.

Next time: compare SeqNum and OpType of all ranks; the rank that differs is the culprit.
NumelIn=1 is a metric, a flag, or a barrier: NCCL has no barrier, so torch all-reduces
one element, and OpType reads ALLREDUCE. A large NumelIn is a bucket of gradients.
`TORCH_NCCL_DUMP_ON_TIMEOUT=1` makes the flight recorder write each rank's last
collectives with their stacks.

Links: https://github.com/NVIDIA/Megatron-LM/issues/1207 (NumelIn=1 after 600000 ms)
https://github.com/pytorch/pytorch/pull/132701 (the all-reduce inside of NCCL's barrier)
https://github.com/hiyouga/LlamaFactory/issues/7396 (a bucket of 466 million numbers)
https://github.com/pytorch/pytorch/issues/118369 (old wording, 1800000 ms)
"""

# %% quoted
# [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,
# OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013
# milliseconds before timing out.

# %% broken
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    prepare(dataset)  # an hour; the others are at the barrier already
dist.barrier()

# %% fixed
dist.init_process_group("nccl")
patient = dist.new_group(backend="gloo", timeout=timedelta(hours=3))
if dist.get_rank() == 0:
    prepare(dataset)  # an hour; the others are at the barrier already
dist.barrier(group=patient)

# %% signs
# collective operation timeout|Timeout at NCCL work
# echo: Some NCCL operations have failed or timed out
# echo: Exception \(either an error or timeout\) detected by watchdog at work
# echo: To avoid data inconsistency, we are taking the entire process down
# maybe: Received a dump signal due to a collective timeout
# ran for \d+ milliseconds before timing out
# maybe: due to collective timeout or exception
# maybe: watchdog got stuck for \d+ seconds|Heartbeat monitor timed out
# timed out in call to wait\(\)
# maybe: flight recorder dump signal from another rank
# maybe: ProcessGroupNCCL::WorkNCCL::checkTimeout\(
# maybe: Received a (?:global )?timeout (?:signal )?from another rank
