r"""Can't pickle local object: the spawned function is nested.

class: launch
symptom: crash
runs on: one process
chapter: ch4_ranks
signature: Can't (?:pickle|get) local object

You see: `Can't pickle local object 'main.<locals>.worker'` in `mp.spawn`, before any
process has started. For a lambda it says `Can't pickle <function <lambda>>`.

Cause: a spawned process gets its function by name: pickle writes the module and the
name, and the child imports it. A nested function, a lambda, or a closure over a lock or
an open file has no name to import.

Cure: define the function at the top of a module, and pass what it needs through `args`.

Next time: `pickle.dumps(worker)` fails in the same way, in one line.

Links: https://github.com/NVIDIA/DeepLearningExamples/issues/1120 (mp.spawn and local functions in a data loader)
https://github.com/Lightning-AI/pytorch-lightning/issues/1457 (a lambda in the model)
"""

# %% given
import os
import sys

import torch.multiprocessing as mp

sys.path.insert(0, os.getcwd())
with open("work.py", "w") as file:
    print("def worker(rank, lr):", file=file)
    print("    print('rank', rank, 'learns at', lr)", file=file)


def start(worker, *args):
    """Start it in a new Python, as mp.spawn does, and wait for its end."""
    process = mp.get_context("spawn").Process(target=worker, args=args)
    process.start()
    process.join()


# %% broken
def main(lr):
    def worker(rank):
        print("rank", rank, "learns at", lr)

    start(worker, 0)


main(lr=0.1)


# %% fixed
def main(lr):
    from work import worker

    start(worker, 0, lr)


main(lr=0.1)

# %% signs
# [Cc]an(?:no|'?)t (?:pickle|get) local object
# [Cc]an'?t pickle <function <lambda>
# maybe: [Cc]an(?:not|'?t) pickle '?[\w.]+'? objects?|h5py objects can(?:not|'t) be pickled
# maybe: Can't pickle <.*(?:attribute lookup|it's not the same object)
# unless: multiprocessing[./]pool|concurrent[./]futures|joblib[./]externals|pickle\.dump\(
# echo: reduction\.pickle\.load\(from_parent\)
