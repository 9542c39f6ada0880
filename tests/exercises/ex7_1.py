"""Answers to exercise 7.1 that the check must take or refuse."""


# %% right: counts the bytes that a rank sends
def ex7_1(collective, num_bytes, world_size, seconds):
    chunk = num_bytes / world_size
    sent = num_bytes - chunk
    if collective == "all_reduce":
        sent += num_bytes - chunk
    elif collective == "broadcast":
        sent = num_bytes
    return num_bytes / seconds / 1e9, sent / seconds / 1e9


# %% wrong: the same factor for all collectives
# = speed = num_bytes / seconds / 1e9
# = return speed, speed * 2 * (world_size - 1) / world_size
# %% wrong: once around for an all_reduce
# = speed = num_bytes / seconds / 1e9
# = factor = 1 if collective == "broadcast" else (world_size - 1) / world_size
# = return speed, speed * factor
# %% wrong: counts in GiB
# = speed = num_bytes / seconds / 2**30
# = factor = {"all_reduce": 2, "broadcast": 0}.get(collective, 1)
# = return speed, speed * (factor * (world_size - 1) / world_size if factor else 1)
# %% wrong: takes one bandwidth for the other
# = speed = num_bytes / seconds / 1e9
# = return speed, speed
