r"""The accuracy is averaged over ranks with unequal sample counts.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: accuracy \S+ instead of
guard: reported is 0\.616\d+ on ranks 0, 1.*is 0\.475

You see: a validation figure that changes with the number of ranks, for the same
weights.

Cause: the ranks have different numbers of samples, and a mean of means gives each rank
the same weight. To log only rank 0's figure is the same mistake with more noise.
Samples that the sampler repeats to make the shards equal are counted twice, too.

Cure: reduce what can be added, the number of correct answers and of samples, and divide
at the end. For other metrics use a library that reduces their state, such as
torchmetrics.

Next time: evaluate the same weights in one process. The figures must be equal, not
close.

Links: https://github.com/roboflow/rf-detr/issues/1507 (samples that the sampler repeats are counted twice)
https://github.com/Lightning-AI/pytorch-lightning/issues/4493 (mean over batches is not the metric of all data)
"""

# %% given
samples = 10 if rank == 0 else 30
correct = 9 if rank == 0 else 10

# %% broken
accuracy = torch.tensor(correct / samples)
dist.all_reduce(accuracy)
accuracy /= world_size
print(f"accuracy {accuracy.item():.3f}")

# %% fixed
counts = torch.tensor([correct, samples])
dist.all_reduce(counts)
accuracy = counts[0] / counts[1]
print(f"accuracy {accuracy.item():.3f}")

# %% invariant: the accuracy is that of all samples in one process
hits = [None] * world_size
dist.all_gather_object(hits, [True] * correct + [False] * (samples - correct))
everyone = sum(hits, [])
got, want = accuracy.item(), sum(everyone) / len(everyone)
assert abs(got - want) < 1e-6, f"accuracy {got:.3f} instead of {want:.3f}"

# %% guarded
from allranks.guard import Guard

accuracy = torch.tensor(correct / samples)
dist.all_reduce(accuracy)
accuracy /= world_size
Guard().metric(accuracy, correct, samples)
