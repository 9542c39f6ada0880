"""The rank modulo the number of GPUs.

runs on: 2 ranks
outcome: raises
chapter: ch4_ranks

`rank % n_gpus` guesses the local rank. Without a GPU it divides by zero. With GPUs it
is right as long as all nodes are equal: on nodes with 2 and 4 GPUs, the fifth process
of the job is the third of its node, but 4 % 4 says 0. Ask the launcher, which knows.
"""

# %% given
import os

# %% wrong
device_index = rank % torch.cuda.device_count()

# %% right
rank, num_gpus, third_of_its_node = 4, 4, 2  # nodes with 2 and 4 GPUs
print("guessed:", rank % num_gpus, "- true:", third_of_its_node)
device_index = int(os.environ["LOCAL_RANK"])
print("this process:", device_index)
