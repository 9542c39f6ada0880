r"""Can't pickle local object: it is sent to the other ranks.

class: process group
symptom: crash
runs on: 2 ranks
chapter: ch4_ranks
signature: Can't (pickle|get) local object 'make_config\.<locals>\.<lambda>'

You see: `all_gather_object`, `broadcast_object_list` or `scatter_object_list` raises on
the ranks that send. If only one rank sends, the others wait for it.

Cause: object collectives pickle the object, and a pickle contains only the names of
functions, not their code. A lambda, a function inside a function, an open file or a
lock has no name that another process could import.

Cure: send plain data, such as numbers, strings, lists, dicts and CPU tensors, and build
the function on each rank.

Next time: call `pickle.dumps(obj)` in a single process, which raises the same error.

Links: https://docs.pytorch.org/docs/stable/distributed.html (objects must be picklable)
"""


# %% broken
def make_config():
    return {"lr": 0.1, "schedule": lambda step: 0.1 / (1 + step)}


found = [None] * world_size
dist.all_gather_object(found, make_config())
print("configs:", len(found), "keys:", *found[0])


# %% fixed
def make_config():
    return {"lr": 0.1, "schedule": "inverse"}


found = [None] * world_size
dist.all_gather_object(found, make_config())
print("configs:", len(found), "keys:", *found[0])

# %% signs
# maybe: (?:AttributeError|PicklingError): Can't (?:pickle|get) (?:local object|<function)
# with: _gather_object|broadcast_object_list|_object_to_tensor
