r"""Samples are skipped after a resume: the loader had prefetched them.

class: data
symptom: silent
runs on: one process
chapter: ch9_data
signature: 8 of 16 samples were never seen
beyond: `watch.mark` keeps digests of weights and settings. Which samples the model has seen, only your loop knows.

You see: nothing. After each restart in the middle of an epoch, some samples are left
out. With more workers there are more of them.

Cause: the checkpoint has the sampler's own count. But a loader with workers asks its
sampler for `num_workers * prefetch_factor` batches before the model sees the first, and
stays that far ahead. What was on its way when the job was killed is counted, and lost.
(The opposite is as common: nothing is saved, the epoch begins anew, and its first
samples come twice.)

Cure: count what the training loop has received, and save that. torchdata's
`StatefulDataLoader` does: its state belongs to the last batch that it handed out.

Next time: resume with `num_workers=4` in a test, and compare the samples of both parts
with the samples of an epoch that was not interrupted.

Links: https://github.com/lhotse-speech/lhotse/issues/785 (a sampler's saved count does not fit the step)
https://github.com/meta-pytorch/data/issues/1520 (prefetched batches, and what a state should hold)
https://github.com/PrimeIntellect-ai/prime-rl/pull/3299 (workers prefetch from the start before the state is loaded)
"""

# %% given
from torch.utils.data import DataLoader, Sampler


class Counting(Sampler):
    def __init__(self, start=0):
        self.start = start

    def __iter__(self):
        while self.start < 16:
            self.start += 1
            yield self.start - 1


def load(start):
    sampler = Counting(start)
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    return sampler, DataLoader(range(16), batch_size=2, sampler=sampler, **workers)


seen = []

# %% broken
sampler, loader = load(start=0)
for step, batch in enumerate(loader, 1):
    seen += batch.tolist()
    if step == 2:
        break  # the job is killed
start = sampler.start
sampler, loader = load(start)
seen += [i for batch in loader for i in batch.tolist()]
print(f"resumed at sample {start}")

# %% fixed
sampler, loader = load(start=0)
for step, batch in enumerate(loader, 1):
    seen += batch.tolist()
    if step == 2:
        break  # the job is killed
start = step * 2
sampler, loader = load(start)
seen += [i for batch in loader for i in batch.tolist()]
print(f"resumed at sample {start}")

# %% invariant: an epoch shows each sample to the model once
assert len(seen) == len(set(seen)), f"{seen} has samples twice"
lost = 16 - len(seen)
assert not lost, f"{lost} of 16 samples were never seen"
