r"""ZeroDivisionError: one rank's loader is empty.

class: data
symptom: crash
runs on: 2 ranks
chapter: ch5_ddp
signature: ZeroDivisionError: (float )?division by zero

You see: a `ZeroDivisionError` where the mean loss of an epoch is computed, though the
same script ran on fewer GPUs. With `next(iter(loader))`: a bare
`StopIteration`. Without either: an epoch of no steps, and no message.

Cause: the sampler deals the dataset out, and `drop_last=True` throws away a batch that
is not full. Six samples on two ranks make three each, and with a batch size of four
that is no batch at all.

Cure: choose a batch size that fits into a rank's share, or no `drop_last`. Check once
that `len(loader)` is not 0.

Next time: print `len(dataset)`, `len(sampler)` and `len(loader)` at the start.

Links: https://github.com/arm/neural-graphics-model-gym/pull/147 (drop_last on a small dataset divides by zero)
"""

# %% given
from torch.utils.data import DataLoader, DistributedSampler

dataset = torch.arange(6.0)
sampler = DistributedSampler(dataset, shuffle=False)

# %% broken
batch_size = 4
loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)
losses = [batch.mean().item() for batch in loader]
print("mean loss", sum(losses) / len(losses))

# %% fixed
batch_size = min(4, len(sampler))
loader = DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)
losses = [batch.mean().item() for batch in loader]
print("mean loss", sum(losses) / len(losses))

# %% signs
# maybe: ZeroDivisionError: (?:float |integer )?(?:division|modulo)[\w ]* by zero|num_samples=0
# with: len\((?:self\.)?\w*(?:loader|Loader)\w*\)
# with: utils[./]data[./]distributed|distributed_sampler|across ranks is zero|DistributedSampler|drop_last
# with: torchrun|torch[./]distributed|distributed_c10d|ChildFailedError|DistributedDataParallel|local_rank|local-rank|LOCAL_RANK|init_process_group|world_size|WORLD_SIZE
# with: accelerate|deepspeed|DeepSpeed|ightning|mmcv[./]runner|mmengine|ProcessGroup|NCCL INFO|NCCL WARN|NCCL version|NCCL error|ProcessRaisedException
# with: multiprocessing[./]spawn|mp\.spawn|nn[./]parallel|DataParallel|egatron|orovod|olossal|dist_train|--nproc|node_rank|MASTER_(?:ADDR|PORT)
# with: log_every|metric_logger|dataloader|DataLoader|data_loader|Dataloader|train_one_epoch|len\(iterable\)
# maybe: ^StopIteration && next\(iter\(\w*(?:[Ll]oader|dl|data)\w*\)\)
# not a single sample in your epoch_iterator
# maybe: across ranks is zero|within local rank has zero length
# assert len\(indices\) == self\.(?:total_size|num_samples)|sampler cannot pad your dataset
