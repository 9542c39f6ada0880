"""Answers to exercise 9.1 that the check must take or refuse."""


# %% right: numbers all readers, so that neighbors are of different ranks
def ex9_1(shards, rank, world_size, worker_info):
    worker = worker_info.id if worker_info else 0
    workers = worker_info.num_workers if worker_info else 1
    reader = worker * world_size + rank
    readers = world_size * workers
    return [shard for i, shard in enumerate(shards) if i % readers == reader]


# %% wrong: divides them over the workers only, as a manual for one process says
# ~ shards[rank::world_size] => shards
# %% wrong: divides them over the ranks only
# = return shards[rank::world_size]
# %% wrong: takes for granted that there are workers
# = reader = rank * worker_info.num_workers + worker_info.id
# = return shards[reader :: world_size * worker_info.num_workers]
# %% wrong: neighbors are workers of one rank, so the remainder is too
# - return mine[worker_info.id :: worker_info.num_workers]
# + workers = worker_info.num_workers
# + return shards[rank * workers + worker_info.id :: world_size * workers]
# %% wrong: blocks, rounded down
# - mine = shards[rank::world_size]
# + size = len(shards) // world_size
# + mine = shards[rank * size : (rank + 1) * size]
# %% wrong: blocks, rounded up
# - return mine[worker_info.id :: worker_info.num_workers]
# + size = -(-len(shards) // (world_size * worker_info.num_workers))
# + first = (rank * worker_info.num_workers + worker_info.id) * size
# + return shards[first : first + size]
