r"""Check batch related parameters: DeepSpeed's batch sizes don't agree.

class: launch
symptom: crash
runs on: quoted
chapter: ch5_ddp

You see: `AssertionError: Check batch related parameters. train_batch_size is not equal to
micro_batch_per_gpu * gradient_acc_step * world_size`, and four numbers.

Cause: the configuration gives the global batch, the batch of one GPU and the steps of
accumulation. The product of the last two and the number of ranks has to equal the
first. The last of the four numbers in the message is the one to look at: if it is 1 on
a machine with eight GPUs, the launcher started one process, or each of them believes
that it is alone.

Cure: give two of the three and let DeepSpeed compute the third; in Hugging Face's
Trainer write `auto` for all three. If the last number is wrong, repair the command:
`deepspeed train.py` or `torchrun --nproc-per-node 8 train.py`, not `python`.

Next time: check the arithmetic: 64 != 4 * 8 * 1 lacks a factor of two, 16 != 1 * 1 * 1
lacks the ranks.

Links: https://github.com/OpenRLHF/OpenRLHF/issues/346 (seven GPUs, and a batch for eight)
https://github.com/hiyouga/LlamaFactory/issues/2574 (mpirun: each process counts one rank)
https://github.com/bigcode-project/starcoder/issues/77 (64 != 4 * 8 * 1)
"""

# %% quoted
# AssertionError: Check batch related parameters. train_batch_size is not equal to
# micro_batch_per_gpu * gradient_acc_step * world_size 256 != 2 * 18 * 7

# %% broken
config = {
    "train_batch_size": 256,  # of all ranks: 2 * 18 * 7 are 252
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 18,
}

# %% fixed
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 18,  # the rest follows from the ranks: 252
}

# %% signs
# Check batch related parameters\.
# equal to micro_batch_per_gpu \* gradient_acc_step
# is not equal to micro_batch
