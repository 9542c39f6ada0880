r"""Size mismatch: a checkpoint sharded over 4 ranks is loaded on 2.

class: checkpoint
symptom: crash
runs on: 2 ranks
chapter: ch3_save_load
signature: size mismatch for weight: copying a param with shape torch\.Size\(\[2, 4\]\)

You see: `size mismatch`, and the sizes differ by a factor: the old number of ranks over
the new. On more ranks than before, some do not find a file.

Cause: each rank wrote its own shard to its own file. What such a file holds depends on
the number of ranks, but the file does not record that number.

Cure: save with `torch.distributed.checkpoint`, which records where in the whole tensor
each piece lies, so each rank reads the pieces that it needs, on any number of ranks.

Next time: write the world size and the layout into the checkpoint, and compare them
before loading.

Links: https://github.com/Lightning-AI/pytorch-lightning/issues/16815 (sizes differ by the ratio of the ranks)
https://github.com/facebookresearch/metaseq/issues/720 (size mismatch when the sharded training restarts)
"""

# %% given
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

weight = torch.arange(32.0).reshape(8, 4)
if rank == 0:  # the job before wrote four files, and a folder of dcp
    for old_rank, rows in enumerate(weight.chunk(4)):
        torch.save({"weight": rows.clone()}, f"shard{old_rank}.pt")
written = dcp.save({"weight": weight}, checkpoint_id="all")

# %% broken
model = nn.Linear(4, 8 // world_size, bias=False)
model.load_state_dict(torch.load(f"shard{rank}.pt"))
print("first column:", model.weight[:, 0].tolist())

# %% fixed
model = fully_shard(nn.Linear(4, 8, bias=False))
dcp.load(model.state_dict(), checkpoint_id="all")
print("first column:", model.weight.to_local()[:, 0].tolist())

# %% signs
# maybe: size mismatch for [\w.]+: copying a param with shape
# maybe: Missing key in checkpoint state_dict
# with: model_parallel|model parallel with size|mp_rank_\d|tensor[ _]?parallel|FlatParameter|flat_param|sharded|zero_pp_rank
# with: Missing key in checkpoint state_dict
# used a DP world size of \d+ but the current world size
# (?:rank|world size) at save time was \d+, but at load time was
# parallel_size value from checkpoint \(\d+\) is not equal to
# Loading a checkpoint for MP=[1-9]\d* but world size is
# with: ShardedTensor|sharded_state_dict|dist_checkpointing|fsdp_state|tp_rank|pp_rank|zero_stage|consolidated\.
# optimizer state partitioning with a new world size
