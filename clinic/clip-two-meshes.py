r"""All operands must have the same mesh: clipping over two meshes.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: All operands in aten\.stack\.default must have the same mesh

You see: `All operands in aten.stack.default must have the same mesh` from
`clip_grad_norm_`, when some parameters are on one mesh and some on another.

Cause: `clip_grad_norm_` computes the norm of each gradient, stacks these norms, and
computes the norm of the stack. Each of the norms is a DTensor on the mesh of its
parameter. But torch doesn't combine DTensors of two meshes, not even if both are slices
of one larger mesh.

Cure: put every parameter on the full mesh. Use `Shard` on the axis that cuts the
parameter, and `Replicate()` on the other axes. Or keep both meshes, and clip both
groups of parameters with one norm. Call `get_total_norm` for the gradients of each
group, turn both norms into plain tensors with `full_tensor()`, and take the root of the
sum of their squares. Then pass this norm to `clip_grads_with_norm_`, once for each
group.

Next time: print `{getattr(p, "device_mesh", None) for p in model.parameters()}`. It
should hold one mesh. `None` stands for plain parameters.

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
