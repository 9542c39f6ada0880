r"""DataLoader workers all draw the same random numbers.

class: data
symptom: silent
runs on: one process
chapter: ch9_data
signature: AssertionError: 8 draws, 2 of them different
beyond: The guard compares ranks. It does not see what the workers of one rank's loader draw.

You see: nothing. Samples that different workers prepare get the same crop, flip and
noise, and each epoch draws the same again. With more workers it becomes worse.

Cause: the dataset holds a generator, here NumPy's. Each worker process gets a copy of
the dataset as it is when an epoch begins, generator included, and the main process's
own generator never moves. Torch gives each worker different seeds for the *global*
generators: its own and Python's, and since 2021 NumPy's too. It knows nothing of yours.

Cure: seed the generator in the worker, by a `worker_init_fn`. `get_worker_info().seed`
differs between workers and between epochs. On several ranks it differs only if their
global seeds do. Or draw from torch's global generator.

Next time: let `__getitem__` return a random number, and count how many are different in
two epochs.

Links: https://github.com/pytorch/pytorch/issues/5059 (NumPy's numbers are the same in all workers and epochs)
https://github.com/pytorch/pytorch/pull/56488 (each worker's global NumPy generator gets a seed)
https://github.com/TorchDSP/torchsig/issues/343 (transforms that draw the same in each worker)
https://github.com/pytorch/pytorch/pull/107131 (a proposal to reseed all generators that a worker has)
"""

# %% given
import numpy as np
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Noisy(Dataset):
    def __init__(self):
        self.dice = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.dice.random()


torch.manual_seed(0)
workers = {"num_workers": 2, "multiprocessing_context": "fork"}

# %% broken
loader = DataLoader(Noisy(), None, **workers)
draws = [round(noise, 4) for epoch in range(2) for noise in loader]
print(draws)


# %% fixed
def reseed(worker):
    info = get_worker_info()
    info.dataset.dice = np.random.default_rng(info.seed)


loader = DataLoader(Noisy(), None, worker_init_fn=reseed, **workers)
draws = [round(noise, 4) for epoch in range(2) for noise in loader]
print(draws)

# %% invariant: no two samples get the same random number
apart = len(set(draws))
assert apart == len(draws), f"{len(draws)} draws, {apart} of them different"
