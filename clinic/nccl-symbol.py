r"""Undefined symbol ncclCommRegister: the wrong NCCL is loaded.

class: launch
symptom: crash
runs on: quoted
chapter: ch1_environment

You see: `import torch` fails: `libtorch_cuda.so: undefined symbol: ncclCommRegister`, or
another name that begins with `nccl`.

Cause: torch brings NCCL as a wheel of its own (`nvidia-nccl-cu12`), but the loader
takes the first `libnccl.so.2` that it finds. Another package, a module of the cluster
or `LD_LIBRARY_PATH` put an older one in front, which lacks the function.

Cure: take the other one out of `LD_LIBRARY_PATH`, or uninstall the package that brought
it; then reinstall torch together with the NCCL wheel that it requires.

Next time: `LD_DEBUG=libs python -c "import torch" 2>&1 | grep nccl` prints which file
is taken. Afterwards `torch.cuda.nccl.version()` must be the wheel's version.

Links: https://github.com/pytorch/pytorch/issues/119932 (another package brings an NCCL)
https://github.com/pytorch/pytorch/issues/119072 (the same, with what helped)
https://github.com/pytorch/pytorch/issues/186591 (a newer function, ncclCommResume)
"""

# %% quoted
# ImportError: site-packages/torch/lib/libtorch_cuda.so: undefined symbol:
# ncclCommRegister

# %% broken
# export LD_LIBRARY_PATH=/opt/nccl-2.18/lib
# python -c "import torch"

# %% fixed
# unset LD_LIBRARY_PATH
# python -c "import torch"

# %% signs
# undefined symbol: nccl[A-Z]\w+
