"""Answers to exercise 10.4 that the check must take or refuse."""


# %% right: from the deviations from the mean
def ex10_4(gradients, batch):
    g = gradients.to(torch.float64)
    every = [torch.empty_like(g) for _ in range(dist.get_world_size())]
    dist.all_gather(every, g)
    g = torch.cat(every, dim=1)
    many = g.shape[1]
    noise = batch * g.var(dim=1).sum(1).mean()  # with many - 1, so it has no bias
    signal = g.mean(1).square().sum(1).mean() - noise / (batch * many)
    return float(signal), float(noise), float(noise / signal)
