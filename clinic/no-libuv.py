r"""use_libuv was requested but PyTorch was build without libuv support.

class: launch
symptom: crash
runs on: quoted
chapter: ch4_ranks

You see: on Windows, torchrun or `init_process_group` fails at once with `use_libuv was
requested but PyTorch was build without libuv support`, whatever the script does.

Cause: the store where the ranks meet has two implementations. Since torch 2.4 the one on
libuv is asked for unless told otherwise, and the wheels for Windows are built without it.

Cure: set the environment variable `USE_LIBUV` to 0 before you start, for torchrun too. If
torchrun of your version ignores it, start one process for each GPU with `mp.spawn` and
`init_method="env://?use_libuv=0"`. Windows has no NCCL, so the backend is gloo; in WSL2
or on Linux there is neither problem.

Next time: `python -c "import torch.distributed as d; print(d.is_nccl_available())"`
tells whether this torch can train on several GPUs at full speed at all.

Links: https://github.com/pytorch/pytorch/issues/139990 (the default, and USE_LIBUV=0)
https://github.com/hiyouga/LlamaFactory/issues/7124 (torchrun.exe with three GPUs)
"""

# %% quoted
# RuntimeError: use_libuv was requested but PyTorch was build without libuv support

# %% broken
# torchrun --nproc-per-node 2 train.py

# %% fixed
# set USE_LIBUV=0
# torchrun --nproc-per-node 2 train.py

# %% signs
# was buil[dt] without libuv
# use_libuv was requested
