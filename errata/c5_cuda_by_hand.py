"""Must CUDA and cuDNN be installed first?

runs on: one process
outcome: runs
hardware: GPU
chapter: ch1_environment

"Install the CUDA toolkit and cuDNN, then PyTorch." A wheel states what pip has to
install beside it. Below are such lines, as they stand in the metadata of the wheel that
plain `pip install torch` takes on Linux (2.13.0, x86-64; the others are left out). So
pip brings both, and the machine needs a driver. You need a toolkit only if you compile
CUDA code.
"""

# %% given
import re

METADATA = """\
Requires-Dist: cuda-toolkit[cublas,cudart,nvrtc]==13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"
"""

# %% claim
asked_of_pip = re.findall(r"Dist: ([\w-]*(?:cuda|cudnn)[\w-]*)", METADATA)
left = {"cuda-toolkit", "nvidia-cudnn-cu13"} - {*asked_of_pip}
print("left to be installed by hand:", left or "nothing")

# %% fact
for name, version in re.findall(r"Dist: ([\w-]+).*==([\d.]+)", METADATA):
    print("pip installs", name, version)
