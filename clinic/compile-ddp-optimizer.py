r"""DDPOptimizer: Found a higher order op (checkpointing, FlexAttention).

class: DDP
symptom: crash
runs on: quoted
chapter: ch5_ddp

You see: `BackendCompilerFailed: ... DDPOptimizer backend: Found a higher order op in the
graph. This is not supported`, in the first forward of a compiled DDP model. The same
model compiles on one GPU.

Cause: DDP sends the gradients of a bucket while the backward still computes the others.
One compiled graph would end that, so torch.compile cuts the graph where DDP's buckets
end (the "DDP optimizer"). Activation checkpointing, FlexAttention and `torch.cond` put
a graph inside the graph, which older versions could not cut.

Cure: upgrade torch. Where you cannot, `torch._dynamo.config.optimize_ddp = False` before
the first forward: it compiles, but all gradients are sent at the end. Or compile the
blocks of the model, each by itself, before you wrap it: no graph is then larger than a
block, and DDP sees its parameters as usual.

Next time: compile inside, wrap outside, and try it with two processes on the CPU.

Links: https://github.com/pytorch/pytorch/issues/104674 (activation checkpointing under DDP and compile)
https://github.com/pytorch/pytorch/issues/137481 (FlexAttention under DDP)
"""

# %% quoted
# torch._dynamo.exc.BackendCompilerFailed: backend='compile_fn' raised:
# NotImplementedError: DDPOptimizer backend: Found a higher order op in the graph. This
# is not supported. Please turn off DDP optimizer using
# torch._dynamo.config.optimize_ddp=False.

# %% broken
ddp = DistributedDataParallel(net, device_ids=[local_rank])  # net uses checkpointing
model = torch.compile(ddp)

# %% fixed
for block in net.blocks:
    block.compile()
model = DistributedDataParallel(net, device_ids=[local_rank])

# %% signs
# DDPOptimizer backend: Found a higher order op
# maybe: DDPOptimizer|optimize_ddp && BackendCompilerFailed|InternalTorchDynamoError|torch\._dynamo\.exc|torch/_dynamo/
