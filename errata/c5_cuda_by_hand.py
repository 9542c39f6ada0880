"""Must CUDA and cuDNN be installed first?

runs on: one process
outcome: runs
hardware: GPU
chapter: ch1_environment

"Install the CUDA toolkit and cuDNN, then PyTorch." PyTorch's CUDA wheels bring the CUDA
libraries and cuDNN that they were built for; the machine needs a driver that is new
enough. Without a GPU we look at the same thing on the CPU: PyTorch computes with
OpenMP, and brings the library along. You need a toolkit only to compile CUDA code of
your own.
"""

# %% given
import pathlib

import torch

libraries = pathlib.Path(torch.__file__).parent / "lib"
own = list(libraries.glob("lib*omp*"))

# %% claim
print("OpenMP must come from somewhere else:", not own)

# %% fact
print("OpenMP came with PyTorch:", bool(own))
print("parallel with it:", "OpenMP" in torch.__config__.parallel_info())
