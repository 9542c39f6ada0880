r"""Error building extension: DeepSpeed lacks a compiler, ninja or CUDA.

class: launch
symptom: crash
runs on: quoted
chapter: ch6_model_parallel

You see: `'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'`, mostly the last
message and never the first. Above it: `Error building extension 'cpu_adam'`, or
`Installed CUDA version 12.2 does not match the version torch was compiled with 11.7`, or
`CUDA_HOME does not exist, unable to compile CUDA op(s)`.

Cause: DeepSpeed brings sources, and compiles an operator when it is first needed
(fused or CPU Adam, transformer kernels, asynchronous I/O). For that it needs a C++
compiler, ninja and a CUDA toolkit of the major version that torch was built with. The
object whose constructor failed is then thrown away, and its destructor complains last.

Cure: look at the first error of the compiler. Install the toolkit that
`torch.version.cuda` names and let `CUDA_HOME` point to it, or install a torch for the
toolkit that is there; install `ninja` and a compiler that the toolkit accepts. Then
delete `~/.cache/torch_extensions`, where a half-built operator may lie.

Next time: `ds_report` lists which operators can be compiled here, and both versions of
CUDA.

Links: https://github.com/deepspeedai/DeepSpeed/issues/1846 (ds_opt_adam; the compiler's error above)
https://github.com/deepspeedai/DeepSpeed/issues/3223 (two versions of CUDA)
"""

# %% quoted
# deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder:
# Installed CUDA version 12.2 does not match the version torch was compiled with 11.7,
# unable to compile cuda/cpp extensions without a matching cuda version.

# %% broken
# deepspeed --num_gpus 2 train.py --deepspeed offload.json

# %% fixed
# ds_report  # then the toolkit that torch.version.cuda names
# CUDA_HOME=/usr/local/cuda-11.7 \
#     deepspeed --num_gpus 2 train.py --deepspeed offload.json

# %% signs
# has no attribute 'ds_opt_ada|has no attribute '(?:create|destroy)_ada\w+'
# Error building extension '(?:cpu_ada\w+|fused_\w+|transformer\w*|async_io|utils|quantizer|cpu_lion|stochastic_transformer|inference\w*|random_ltd|sparse_attn|spatial_inference|evoformer_attn)'
# CUDAMismatchException|MissingCUDAException|DeepSpeed Op Builder: Installed CUDA version
# Unable to JIT load the \w+ op
# does not match the version torch was compiled with \S+, unable to compile
# No module named 'deepspeed\.ops\.(?:op_builder|csrc|adam\.\w+_op|aio)
