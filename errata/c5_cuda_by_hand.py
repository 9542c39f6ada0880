"""Must CUDA and cuDNN be installed first?

runs on: one process
outcome: runs
hardware: GPU
chapter: ch1_environment

"Install the CUDA toolkit and cuDNN, then PyTorch." A wheel states what pip has to
install beside it. Below are such lines, as they stand in the metadata of the wheel that
plain `pip install torch` takes on Linux (2.13.0, x86-64; the others are left out). And
torch itself knows the folders into which pip unpacks them: the last cell lays down an
empty file where the cuDNN wheel has its library, and torch's own search finds it. The
machine must bring a driver, and a toolkit only if you compile CUDA code.
"""

# %% given
import re
from pathlib import Path

import torch

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
folder = Path("site-packages/nvidia/cudnn/lib")
folder.mkdir(parents=True)
(folder / "libcudnn.so.9").touch()
found = torch._get_cuda_dep_paths("site-packages", "cudnn", "libcudnn.so.*")
print("torch finds", *found)
