r"""The AUC is computed on each rank, and then averaged.

class: silent wrong
symptom: silent
runs on: 2 ranks
chapter: ch5_ddp
signature: AUC \S+ instead of
beyond: All ranks report the same number, so nothing differs; `watch.metric` checks means, and an AUC is not a mean.

You see: an AUC (or F1, precision at k, a rank correlation, perplexity, FID) that
changes with the number of GPUs for the same weights, though all ranks have the same
number of samples.

Cause: an accuracy is a mean over samples, so sums of the ranks can be added. The AUC is
the share of pairs, one positive and one negative, that are in the right order. The mean
of the ranks' AUCs leaves out all pairs that lie on two ranks, and no weights by numbers
of samples bring them back. The gap is large if the ranks' data differ, as with files
sorted by user or by date.

Cure: gather scores and labels of all ranks and compute it once, or add up what it can be
computed from (histograms of scores, true and false positives). torchmetrics does so if
you call `compute()` on the metric object, and do not average its results yourself.

Next time: evaluate the same weights in one process. The figures must be equal, not close.

Links: https://github.com/RUCAIBox/RecBole/issues/1872 (AUC with several GPUs below that of one)
"""

# %% given
torch.manual_seed(0)
label = (torch.arange(200) + torch.randn(200) * 60 > 100).float()
score = torch.arange(200) + torch.randn(200) * 60  # sorted by time, as a log is
mine = slice(100 * rank, 100 * rank + 100)


def auc(score, label):
    positive, negative = score[label == 1], score[label == 0]
    return (positive[:, None] > negative).float().mean()


# %% broken
result = auc(score[mine], label[mine])
dist.all_reduce(result)
result /= world_size
print(f"AUC {result:.3f}")

# %% fixed
both = torch.stack([score[mine], label[mine]])  # (2, samples of this rank)
parts = [torch.empty_like(both) for _ in range(world_size)]
dist.all_gather(parts, both)
result = auc(*torch.cat(parts, dim=1))
print(f"AUC {result:.3f}")

# %% invariant: the AUC is that of all samples in one process
want = auc(score, label)
assert abs(result - want) < 1e-6, f"AUC {result:.3f} instead of {want:.3f}"
