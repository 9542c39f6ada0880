r"""All operands must have the same mesh: clipping over two meshes.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: All operands in aten\.stack\.default must have the same mesh

You see: `All operands in aten.stack.default must have the same mesh` from
`clip_grad_norm_`, when some layers are parallel in one way and some in another.

Cause: the norms of the parameters are stacked, and then their norm is taken. Each is a
DTensor on its parameter's mesh, and torch does not combine DTensors of two meshes, not
even when they are slices of one.

Cure: use one mesh with all axes for all parameters, and `Replicate()` along the axes
that do not cut a parameter. Or clip the two groups with one norm: take `get_total_norm`
of each, convert both to plain numbers, combine them, and call `clip_grads_with_norm_`.

Next time: collect `{getattr(p, "device_mesh", None) for p in model.parameters()}`. It
should hold one mesh; `None` stands for plain parameters.

Links: https://github.com/pytorch/pytorch/issues/180346 (clipping with two meshes, and why it fails)
https://github.com/pytorch/pytorch/pull/180501 (an attempt to mend it in torch)
"""

# %% given
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
grad = torch.full((4,), 2.0)


def parameter(mesh, placements):
    tensor = nn.Parameter(distribute_tensor(torch.ones(4), mesh, placements))
    tensor.grad = distribute_tensor(grad, mesh, placements)
    return tensor


# %% broken
embedding = parameter(mesh["dp"], [Shard(0)])
linear = parameter(mesh["tp"], [Shard(0)])
norm = nn.utils.clip_grad_norm_([embedding, linear], 1.0)
print("norm of the gradient:", round(norm.full_tensor().item(), 4))

# %% fixed
embedding = parameter(mesh, [Shard(0), Replicate()])
linear = parameter(mesh, [Replicate(), Shard(0)])
norm = nn.utils.clip_grad_norm_([embedding, linear], 1.0)
print("norm of the gradient:", round(norm.full_tensor().item(), 4))

# %% signs
# All operands in aten\.[\w.]+ must have the same mesh
# DTensor does not support cross-mesh operation
