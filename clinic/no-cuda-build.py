r"""Torch not compiled with CUDA enabled.

class: launch
symptom: crash
runs on: one process
chapter: ch1_environment
signature: Torch not compiled with CUDA enabled
elsewhere: Found no NVIDIA driver

You see: `AssertionError: Torch not compiled with CUDA enabled`, also on a machine that
has a GPU.

Cause: the installed wheel is the one for the CPU; a `pip install` of another package
may have replaced yours. `torch.cuda.set_device` and `init_device_mesh("cuda", ...)`
fail one step earlier, with `module 'torch._C' has no attribute '_cuda_setDevice'`.

Cure: install the CUDA wheel, or ask torch which device there is instead of naming one.

Next time: `python -c "import torch; print(torch.__version__, torch.version.cuda)"`
prints `+cpu` or `None` for such a wheel.

Links: https://github.com/zhuang2002/Cobra/issues/4 (requirements.txt had brought another torch)
https://github.com/karpathy/nanoGPT/issues/281 (cured by the other device)
"""

# %% given
import torch

# %% broken
device = "cuda"
x = torch.ones(2, device=device)
print("sum", x.sum().item())

# %% fixed
device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
x = torch.ones(2, device=device)
print("sum", x.sum().item())

# %% signs
# not compiled with CUDA enabled|Cannot initialize CUDA without ATen_cuda
# module 'torch\._C' has no attribute '_cuda_
