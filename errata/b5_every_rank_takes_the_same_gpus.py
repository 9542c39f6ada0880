"""All ranks on the same two GPUs.

runs on: 2 ranks
outcome: runs
hardware: GPU
chapter: ch6_model_parallel

Each rank splits its model over `cuda:0` and `cuda:1`, by name, but in every process on
the machine these names mean the same two GPUs. So `local_rank` has to choose. Here the
ranks only say which devices they would take, so no GPU is needed.
"""


# %% given
def taken(devices):
    everyone = [None] * world_size
    dist.all_gather_object(everyone, [str(device) for device in devices])
    names = sum(everyone, [])
    return (
        f"{len(names)} parts of models on {len(set(names))} GPUs: {sorted(set(names))}"
    )


# %% wrong
devices = [torch.device("cuda", 0), torch.device("cuda", 1)]
print(taken(devices))

# %% right
devices = [torch.device("cuda", 2 * local_rank + part) for part in range(2)]
print(taken(devices))
