"""Answers to exercise 10.1 that the check must take or refuse."""


# %% right: compares a uniform number with the place between the neighbors
def ex10_1(x, generator):
    lower = (x.view(torch.int32) & -65536).view(torch.float32)
    upper = ((x.view(torch.int32) & -65536) + 65536).view(torch.float32)
    place = (x.double() - lower.double()) / (upper.double() - lower.double())
    dice = torch.rand(x.shape, generator=generator, dtype=torch.double)
    chosen = torch.where(dice < place, upper, lower)
    return torch.where(x.isfinite(), chosen, x).to(torch.bfloat16)


# %% wrong: rounds to the nearest
# = return x.bfloat16()
# %% wrong: NaN passes through the whole numbers
# ~ torch.where(x.isfinite(), bits.view(torch.float32), x) => bits.view(torch.float32)
# %% wrong: the noise comes from each rank's own dice
# ~ generator=generator, dtype => dtype
# %% wrong: noise, and then to the nearest, which rounds what it could hold
# = return (x * (1 + (torch.rand(x.shape, generator=generator) - 0.5) / 64)).bfloat16()
# %% wrong: a fair coin
# ~ , dtype=torch.double) => ) < 0.5
# ~ dice < place => dice & (lower != x)
# %% wrong: 16 bits of noise are added, but the nearest is taken
# ~ + noise) & -65536 => + noise * (x.bfloat16().float() != x))
