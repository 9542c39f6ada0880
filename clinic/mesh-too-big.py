r"""Mesh should not be bigger than default world size.

class: TP/FSDP2
symptom: crash
runs on: 2 ranks
chapter: ch6_model_parallel
signature: RuntimeError: Mesh should not be bigger than default world size 2, but found 4 ranks!

You see: `Mesh should not be bigger than default world size`, at the start, when you run
a configuration for a larger machine on a small one.

Cause: the axes of a mesh multiply: 2 x 2 needs four ranks. A mesh that is too small is
accepted silently. The ranks left over are not part of it, and they fail or hang later.

Cure: first choose the axes whose size the model dictates. Then compute the remaining
axis from the world size. Check that the product of all axes equals the world size: not
more, not less.

Next time: print `mesh` and `dist.get_world_size()`. A wrong world size often comes from
the launcher's `--nproc-per-node` or `--nnodes`.

Links: https://github.com/pytorch/pytorch/issues/111452 (a 2-D mesh larger than the world)
"""

# %% given
from torch.distributed.device_mesh import init_device_mesh

axes = "dp", "tp"

# %% broken
tp = 2
mesh = init_device_mesh("cpu", (2, tp), mesh_dim_names=axes)
print(dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)))

# %% fixed
tp = 2
mesh = init_device_mesh("cpu", (world_size // tp, tp), mesh_dim_names=axes)
print(dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)))

# %% signs
# Mesh should not be bigger than default world size
# maybe: [Ww]orld[ _]size ?\(\d+\) is not divisible by
# maybe: Invalid parallel dims: .*WORLD_SIZE
# maybe: total_size \(\d+\) does not match num_processes
