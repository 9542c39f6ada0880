"""Answers to exercise 9.2 that the check must take or refuse."""

# %% right: NumPy mixes them, so that any two meet with a chance of about 2⁻⁶³
import numpy as np


def ex9_2(seed, epoch, rank, worker):
    mixed = np.random.SeedSequence([seed, epoch, rank, worker])
    return int(mixed.generate_state(1, np.uint64)[0]) >> 1


# %% right: a digest of all four, of which 63 bits are kept
import hashlib


def ex9_2(seed, epoch, rank, worker):
    digest = hashlib.sha256(repr((seed, epoch, rank, worker)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# %% wrong: their sum, as in seed + rank and base_seed + worker_id
# = return seed + epoch + rank + worker
# %% wrong: gives each of them one decimal digit
# = return seed * 1000 + epoch * 100 + rank * 10 + worker
# %% wrong: every epoch draws the same again
# = return (seed * 2**16 + rank) * 2**8 + worker
# %% wrong: one of the operating system's random numbers
# + import secrets
# = return secrets.randbits(62)
# %% wrong: draws it from the global generator
# + import torch
# = torch.manual_seed(((seed * 2**16 + epoch) * 2**16 + rank) * 2**8 + worker)
# = return torch.randint(2**62, ()).item()
# %% wrong: Python's hash, which may be negative
# = return hash((seed, epoch, rank, worker))
# %% wrong: all four parts get 16 bits
# = return ((seed * 2**16 + epoch) * 2**16 + rank) * 2**16 + worker
