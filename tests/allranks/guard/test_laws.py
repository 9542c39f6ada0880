"""The guard names what differs between ranks but must not, or is alike but must differ.

Each training goes wrong in one place, and the guard that three lines put into its loop
has to name that place. If nothing is wrong, it has to keep quiet.
"""

import contextlib
import functools
import random
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from allranks import Ranks
from allranks.guard import Guard, GuardError
from allranks.guard.datasets import fingerprint, inner, reader
from allranks.guard.preflight import _products, judge, reads_world_size

mse = nn.functional.mse_loss
CASES = {}


def case(said: str):
    """Register a training as a case, with a pattern for what the guard must say."""

    def add(function):
        CASES[function.__name__.replace("_", " ")] = function, said
        return function

    return add


def odd() -> bool:
    """Return whether this is the rank that differs."""
    return dist.get_rank() == 1


class Samples(Dataset):
    """Samples whose order may differ by rank; file names show it if ``told``."""

    def __init__(self, order=range(48), told: bool = True):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(48, 6, generator=draw)
        order = list(order)
        self.find = order.__getitem__
        if told:
            self.files = [f"/data/{i}.png" for i in order]

    def __len__(self):
        """Count the samples."""
        return 48

    def __getitem__(self, index):
        """Return a sample and its target."""
        x = self.x[self.find(index)]
        return x, x[:2] * 2


def network(*inner):
    """Build a small network with the same weights on all ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *inner, nn.ReLU(), nn.Linear(8, 2))


def fit(model, optimizer=None, data=None, **options):
    """Train with the usual loop, and call ``after`` at the end of each step."""
    forward, after = options.get("forward"), options.get("after")
    fed, epochs = options.get("fed", True), options.get("epochs")
    skip = options.get("skip", ())
    data = Samples() if data is None else data
    loader = data
    if not isinstance(data, DataLoader):
        loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.01)
    steps = 0
    with Guard(model, optimizer, skip=skip, patience_s=20) as watch:
        for epoch in range(2):
            chooses = epochs or loader.sampler
            if hasattr(chooses, "set_epoch"):
                chooses.set_epoch(epoch)
            for x, y in watch.epoch(loader, epoch) if fed else loader:
                optimizer.zero_grad()
                (forward or (lambda x, y: mse(model(x), y)))(x, y).backward()
                watch.step()
                optimizer.step()
                steps += 1
                if after:
                    after(steps)


class Decoded(Samples):
    """Samples that go through a function, as a decoder, which may differ by rank."""

    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def __getitem__(self, index):
        """Return a sample and its target."""
        return self.rule(*super().__getitem__(index))


@case(r"the start of epoch 0: the same index .*not the same sample .*holds ")
def a_decoder_of_another_version():
    rule = torch.floor if odd() else torch.round
    fit(DDP(network()), data=Decoded(lambda x, y: (rule(8 * x) / 8, y)))


@case(r"the start of epoch 0: the same index .*not the same sample .*has the shapes ")
def a_folder_with_larger_pictures():
    fit(DDP(network()), data=Decoded(lambda x, y: (x[: 5 if odd() else 6], y)))


@case(r"warns: .*group 1 of optimizer 0 holds no parameter.*begin with module")
def a_group_chosen_by_a_name_that_has_changed():
    ddp, groups = DDP(network()), ([], [])
    for name, parameter in ddp.named_parameters():
        groups[name.startswith("2.")].append(parameter)
    rates = [{"params": groups[0]}, {"params": groups[1], "lr": 0.1}]
    fit(ddp, torch.optim.SGD(rates, 0.01))


@case(r"warns: .*a hook clips the gradient of module\.0\.bias, on each rank, before")
def a_hook_that_clamps_before_the_exchange():
    ddp = DDP(network())
    for parameter in ddp.parameters():
        parameter.register_hook(lambda g: g.clamp(-0.01, 0.01))
    fit(ddp)


@case(r"^$")
def a_communication_hook_that_leaves_the_mean():
    def mean(_state, bucket):
        sums = dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future()
        return sums.then(lambda done: done.value()[0])

    ddp = DDP(network())
    ddp.register_comm_hook(None, mean)
    fit(ddp)


@case(r"^$")
def a_hook_that_halves_each_gradient():
    ddp = DDP(network())
    for parameter in ddp.parameters():
        parameter.register_hook(lambda g: g / 2)
    fit(ddp)


@case(
    r"the end of epoch 0: the parameter module\.0\.weight .*not the same on all ranks"
)
def a_step_that_one_rank_skips_late():
    ddp = DDP(network())
    rate = torch.optim.SGD(ddp.parameters(), 0.01)

    def after(step):
        if step == 5 and odd():
            ddp.module[0].weight.data += 1

    fit(ddp, rate, after=after)


@case(r"the start: every rank holds the same numbers as its own shard of 0\.weight")
def shards_drawn_with_one_seed():
    net = fully_shard(network())
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter.to_local())
    fit(net)


@case(r"^$")
def shards_of_ones_and_zeros():
    layers = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 2)
    net = fully_shard(nn.Sequential(*layers))
    fit(net)


@case(r"^$")
def shards_that_were_whole_before():
    net = fully_shard(network())
    net(torch.randn(4, 6)).sum().backward()
    net.zero_grad()
    fit(net)


@case(r"warns: .*no gradient has reached .*set_requires_gradient_sync")
def an_exchange_that_is_never_switched_on():
    net = fully_shard(network())
    net.set_requires_gradient_sync(False)
    fit(net, forward=lambda x, y: mse(net(x), y))


class Ahead:
    """Fetches all batches before it yields the first, as an eager prefetcher does."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        """Count the batches."""
        return len(self.loader)

    def __iter__(self):
        """Yield the loader's batches."""
        yield from list(self.loader)


@case(r"the start of epoch 1: the sampler's epoch is still 0")
def an_epoch_behind_a_prefetcher():
    data, ddp = Samples(), DDP(network())
    ahead = Ahead(DataLoader(data, 4, sampler=DistributedSampler(data)))
    with Guard(ddp) as watch:
        for epoch in range(2):
            for x, y in watch.epoch(ahead, epoch):
                ddp.zero_grad()
                mse(ddp(x), y).backward()
                watch.step()


@case(r"^$")
def a_gan_whose_networks_step_in_turn():
    both = nn.ModuleList([DDP(network()), DDP(nn.Linear(2, 1))])
    rates = [torch.optim.Adam(net.parameters(), 0.01) for net in both]
    data = Samples()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    with Guard(both, rates, every=1) as watch:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for x, y in watch.epoch(loader, epoch):
                rates[1].zero_grad()
                (both[1](y).mean() - both[1](both[0](x).detach()).mean()).backward()
                watch.step()
                rates[1].step()
                rates[0].zero_grad()
                both[1](both[0](x)).mean().backward()
                watch.step()
                rates[0].step()


@case(r"there is an optimizer state exp_avg of module\S+ on rank 0 and none on rank 1")
def an_optimizer_that_only_one_rank_loads():
    ddp = DDP(network())
    rate = torch.optim.Adam(ddp.parameters(), 0.01)
    for p in ddp.parameters() if not odd() else ():
        zeros = torch.zeros_like(p)
        rate.state[p] = {"step": zeros.sum(), "exp_avg": zeros, "exp_avg_sq": zeros + 1}
    fit(ddp, rate)


def in_turn(generator_s, spoiled=None):
    """Train a GAN whose second network steps twice in a row in every other round."""
    both = nn.ModuleList([DDP(network()), DDP(nn.Linear(2, 1))])
    rates = [torch.optim.Adam(net.parameters(), 0.01) for net in both]
    with Guard(both, rates, every=1) as watch:
        for step, (x, y) in enumerate(zip(*[Samples().x.split(4)] * 2, strict=True)):
            for at, turn in enumerate((1, 0) if step % 2 else (1, 1, 0)):
                rates[turn].zero_grad()
                loss = generator_s(both, x) if turn == 0 else both[1](y[:, :2]).mean()
                loss.backward()
                if (step, at) == spoiled:
                    both[1].module.weight.grad += dist.get_rank()
                watch.step()
                rates[turn].step()


@case(r"^$")
def a_gan_whose_generator_goes_around_the_other_wrapper():
    in_turn(lambda both, x: both[1].module(both[0](x + dist.get_rank())).mean())


@case(r"step 7: the gradient 1\.module\.weight is not the same on all ranks")
def a_network_that_steps_twice_with_gradients_of_its_own():
    in_turn(lambda both, x: both[1](both[0](x)).mean(), spoiled=(2, 1))


def summed_by_hand(parts):
    """All-reduce gradients without a wrapper; each rank has 4 of 8 samples."""
    net = network()
    rate = torch.optim.SGD(net.parameters(), 0.1)
    x = Samples().x
    with Guard(net, rate, every=1) as watch:
        for step in range(4):
            own = x[8 * step + dist.get_rank() :: 2][:4]
            rate.zero_grad()
            (mse(net(own), own[:, :2]) / parts).backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
            watch.step()
            rate.step()


@case(r"^warns: guard: the program itself sums .* by the number of ranks\.$")
def gradients_that_the_program_sums():
    summed_by_hand(2)


@case(r"^$")
def steps_by_number_and_samples_by_hand():
    x, ddp = Samples().x, DDP(network())
    with Guard(ddp) as watch:
        for epoch in range(2):
            order = torch.randperm(48, generator=torch.Generator().manual_seed(epoch))
            for step in watch.epoch(range(6), epoch):
                own = x[order[8 * step + dist.get_rank() :: 2][:4]]
                mse(ddp(own), own[:, :2]).backward()
                watch.step()
                ddp.zero_grad()


@case(r"^$")
def indices_into_what_a_rank_has_collected():
    x, ddp = torch.randn(24, 6), DDP(network())
    with Guard(ddp) as watch:
        for epoch in range(2):
            for rows in watch.epoch(list(torch.randperm(24).split(4)), epoch):
                mse(ddp(x[rows]), x[rows, :2]).backward()
                watch.step()
                ddp.zero_grad()


@case(r"^$")
def a_data_set_that_is_a_tensor():
    x, ddp = Samples().x, DDP(network())
    loader = DataLoader(x, 4, sampler=DistributedSampler(x))
    with Guard(ddp) as watch:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for own in watch.epoch(loader, epoch):
                mse(ddp(own), own[:, :2]).backward()
                watch.step()
                ddp.zero_grad()


@case(r"^$")
def a_random_sample_of_each_rank():
    fit(DDP(network()), data=Decoded(lambda x, y: (x + torch.randn(6), y)))


class Drawn(Samples):
    """Samples with noise from generators that each rank has seeded differently."""

    def __init__(self):
        super().__init__()
        own = dist.get_rank()
        self.noise = torch.Generator().manual_seed(own)
        self.inside = Samples()  # stands for a transform that the data set holds
        self.inside.shift = random.Random(own)

    def __getitem__(self, index):
        """Return a sample and its target."""
        x, y = super().__getitem__(index)
        noise = torch.randn(6, generator=self.noise)
        return x + noise + self.inside.shift.random(), y


@case(r"^$")
def a_data_set_with_generators_of_its_own():
    data = Drawn()
    first = data.noise.get_state(), data.inside.shift.getstate()
    reader(DataLoader(data, 4, sampler=DistributedSampler(data)))()
    assert first[0].equal(data.noise.get_state())
    assert first[1] == data.inside.shift.getstate()
    fit(DDP(network()), data=data)


@case(r"^$")
def a_data_set_that_draws_by_the_rank_s_seed():
    data = Decoded(lambda x, y: (x + data.seed, y))
    data.seed = torch.tensor(float(dist.get_rank()))
    fit(DDP(network()), data=data)


@case(r"^$")
def a_data_set_whose_draws_cannot_be_repeated():
    draw = random.Random(dist.get_rank()).random
    fit(DDP(network()), data=Decoded(lambda x, y: (x + draw(), y)))


@case(r"^$")
def samples_that_processors_round_otherwise():
    fit(DDP(network()), data=Decoded(lambda x, y: (x * (1 + 1e-6 * odd()), y)))


@case(r"^$")
def a_data_set_that_only_workers_read():
    def rule(x, y):
        assert torch.utils.data.get_worker_info() is not None or not read.append(1)
        return x, y

    read, data = [], Decoded(rule)
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = DataLoader(data, 4, sampler=DistributedSampler(data), **options)
    fit(DDP(network()), data=loader)
    assert not read


class Parting:
    """A sampler whose shares are disjoint in the first epochs, and equal later on."""

    def __init__(self, epochs):
        self.epochs, self.epoch = epochs, 0

    def __len__(self):
        """Count the samples of one rank."""
        return 24

    def __iter__(self):
        """Yield indices: each rank's own at first, and later those of rank 0."""
        apart, self.epoch = self.epoch < self.epochs, self.epoch + 1
        draw = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(48, generator=draw).tolist()
        yield from order[odd() * apart :: 2]


def with_shares_apart(epochs: int):
    """Train for four epochs; shares are disjoint only in the first ``epochs``."""
    ddp = DDP(network())
    loader = DataLoader(Samples(told=False), 4, sampler=Parting(epochs))
    with Guard(ddp, skip=("randomness",)) as watch:
        for epoch in range(4):
            for x, y in watch.epoch(loader, epoch):
                ddp.zero_grad()
                mse(ddp(x), y).backward()
                watch.step()


@case(
    r"step 16: ranks 0, 1 got exactly the same|the end of epoch 2: 24 samples were on"
)
def shares_that_meet_in_the_third_epoch():
    with_shares_apart(epochs=2)


@case(r"^$")
def shares_that_meet_after_the_guard_has_looked():
    with_shares_apart(epochs=3)


@case(
    r"step 4: the modes .*in training on rank 0; .*in evaluation on rank 1 .*must call"
)
def a_rank_left_in_evaluation():
    ddp = DDP(network(nn.Dropout(0.2)))
    fit(ddp, after=lambda step: ddp.eval() if step == 3 and odd() else None)


@case(r"step 1: .*module\.1 \(BatchNorm1d\) is in training on rank 0")
def batch_norm_frozen_on_one_rank():
    ddp = DDP(network(nn.BatchNorm1d(8)))
    ddp.module[1].train(not odd())
    fit(ddp)


@case(r"warns: .*was in training at an earlier check and now it is in evaluation")
def all_ranks_left_in_evaluation():
    ddp = DDP(network(nn.Dropout(0.2)))
    fit(ddp, after=lambda step: ddp.module.eval() if step == 3 else None)


@case(
    r"the start: the model's modules .*module\.1\.p=0\.1 on rank 0; module\.1\.p=0\.5"
)
def another_dropout():
    fit(DDP(network(nn.Dropout(0.5 if odd() else 0.1))))


@case(r"the start: .*module\.1 is a Tanh on rank 0; module\.1 is a GELU on rank 1")
def another_activation():
    fit(DDP(network(nn.GELU() if odd() else nn.Tanh())))


@case(r"forward is code \w+ on rank 0; .*Run the same version of the code")
def another_version_of_the_code():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        if odd():

            def forward(self, x):
                return self.net(x).relu()

        else:

            def forward(self, x):
                return self.net(x)

    fit(DDP(Net()))


@case(r"forward's autocast is torch\.bfloat16 on rank 1|nothing on rank 0; forward's")
def autocast_on_one_rank():
    ddp = DDP(network())

    def forward(x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=odd()):
            return mse(ddp(x).float(), y)

    fit(ddp, forward=forward)


@case(r"optimizer 0 is AdamW on rank 0; optimizer 0 is NAdam on rank 1")
def another_optimizer():
    ddp = DDP(network())
    kind = torch.optim.NAdam if odd() else torch.optim.AdamW
    fit(ddp, kind(ddp.parameters(), 0.01))


@case(r"module\.0\.weight is in group 1 of optimizer 0 on rank 0; .* group 0 .* rank 1")
def weights_among_those_without_decay():
    ddp = DDP(network())
    first, *rest = ddp.parameters()
    bare = [first, rest[0]] if odd() else [rest[0]]
    decayed = rest[1:] if odd() else [first, *rest[1:]]
    groups = [{"params": bare, "weight_decay": 0.0}, {"params": decayed}]
    fit(ddp, torch.optim.AdamW(groups, 0.01))


@case(
    r"hooks .*nothing on rank 0; a hook changes the gradient of module\.0\.weight on r"
)
def a_hook_on_one_rank():
    net = network()
    if odd():
        net[0].weight.register_hook(lambda gradient: 10 * gradient)
    fit(DDP(net))


@case(
    r"step 1: the attribute module\.directions is not .*neither a parameter nor a buf"
)
def a_tensor_that_is_not_registered():
    net = network()
    net.directions = torch.randn(6, 6)
    fit(DDP(net))


@case(
    r"step 1: the attribute module\.hidden\[0\]\.weight \(and 1 more\) is not the same"
)
def layers_in_a_plain_list():
    net = network()
    net.hidden = [nn.Linear(6, 6)]
    fit(DDP(net))


@case(r"warns: .*module\.temperature is not the same .*0\.7 on rank 0, 0\.5 on")
def another_temperature():
    net = network()
    net.temperature = 0.5 if odd() else 0.7
    fit(DDP(net))


@case(
    r"step 1: the hooks .*nothing on rank 0; a hook changes the output of module\.0 on"
)
def a_forward_hook_on_one_rank():
    net = network()
    if odd():
        net[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    net[2].register_forward_hook(lambda module, inputs, output: None)  # only looks
    fit(DDP(net))


@case(r"warns: .*Samples\.strength is not the same .*0\.5 on rank 0, 1\.5 on rank 1")
def another_strength_in_the_data_set():
    data = Samples()
    data.strength = 1.5 if odd() else 0.5
    fit(DDP(network()), data=data)


@case(r"warns: .*module\.config\.mult is not the same .*2 on rank 0, 1 on rank 1")
def another_config():
    net = network()
    net.config = {
        "mult": 2 - odd(),
        "rank": dist.get_rank(),
        "device": f"cuda:{odd():d}",
    }
    fit(DDP(net))


@case(r"step 4: the buffer module\.center is not .* Only rank 1 changes it")
def a_buffer_that_one_rank_updates():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.register_buffer("center", torch.zeros(6))

        def forward(self, x):
            if odd():
                self.center.lerp_(x.detach().mean(0), 0.1)
            return self.net(x - self.center)

    fit(DDP(Net(), broadcast_buffers=False))


@case(
    r"step 4: parameters are NaN on ranks 0, 1: module\.0\.weight and 3 more of 4\. The"
)
def weights_that_are_nan_on_all_ranks():
    ddp, losses = DDP(network()), []

    def forward(x, y):
        losses.append(mse(ddp(x), y))
        return losses[-1] * (torch.nan if len(losses) == 3 else 1)

    fit(ddp, forward=forward)


@case(r"warns: .*no gradient has reached the model's parameters at the last two checks")
def another_copy_is_trained():
    other = DDP(network())
    ddp = DDP(network())
    fit(ddp, forward=lambda x, y: mse(other(x), y))


@case(
    r"start of epoch 0: .*files.*0.* is '/data/\d+\.png' on rank 0 and '/data/\d+\.png'"
)
def files_in_the_order_of_listdir():
    order = list(range(48))
    random.Random(dist.get_rank()).shuffle(order)
    fit(DDP(network()), data=Samples(order))


@case(
    r"start of epoch 0: the same index .* not the same sample.*sort what listdir gives"
)
def an_order_that_the_data_set_does_not_tell():
    order = list(range(48))
    random.Random(dist.get_rank()).shuffle(order)
    fit(DDP(network()), data=Samples(order, told=False))


@case(r"start of epoch 0: the data sets or subsets are not .* take no statistics of a")
def statistics_of_a_share():
    data = Samples()
    data.mean = data.x[dist.get_rank() :: 2].mean(0)
    fit(DDP(network()), data=data)


@case(r"Samples\.labels\['cat'\] is 0 on rank 0 and 1 on rank 1: the ranks mean diff")
def labels_numbered_in_the_order_of_a_set():
    data = Samples()
    data.labels = {"cat": int(odd()), "dog": 1 - odd()}
    fit(DDP(network()), data=data)


@case(r"start of epoch 0: the sampler deals to 8, .*they never see the others")
def a_sampler_for_more_ranks_than_there_are():
    data = Samples()
    sampler = DistributedSampler(data, 8, dist.get_rank())
    fit(DDP(network()), data=DataLoader(data, 4, sampler=sampler))


@case(r"step 1: batches since the last step: 1 on rank 0, 2 on rank 1\. The ranks must")
def accumulation_windows_that_differ():
    ddp, data = DDP(network()), Samples()
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    passes = 2 if odd() else 1
    with Guard(ddp, optimizer, patience_s=20) as watch:
        for count, (x, y) in enumerate(watch.epoch(loader, 0), 1):
            last = count % passes == 0
            with contextlib.nullcontext() if last else ddp.no_sync():
                (mse(ddp(x), y) / passes).backward()
            if last:
                watch.step()
                optimizer.step()
                optimizer.zero_grad()


class Twice(IterableDataset):
    """A stream that acts as its own loader, whose two workers both read all of it."""

    num_workers, batch_sampler = 2, None

    def __init__(self):
        self.dataset = self

    def __iter__(self):
        """Yield each batch twice, as two workers do in turn."""
        for x in Samples().x[dist.get_rank() :: 2].split(4):
            yield from [(x, x[:, :2])] * 2


@case(r"end of epoch 0: each sample came 2 times: .*workers reads the whole stream")
def a_stream_that_every_worker_reads():
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    with Guard(ddp, optimizer, patience_s=20) as watch:
        for x, y in watch.epoch(Twice(), 0):
            optimizer.zero_grad()
            mse(ddp(x), y).backward()
            watch.step()
            optimizer.step()


class Noise(nn.Module):
    """Adds noise to its input."""

    def forward(self, x):
        """Return the input with noise."""
        return x + torch.randn_like(x)


@case(r"step 1: ranks 0, 1 draw the same random numbers \(CPU generator\)")
def noise_from_one_seed_without_epoch():
    torch.manual_seed(5)
    fit(DDP(network(Noise())), fed=False)


@case(r"step 2: ranks 0, 1 draw the same random numbers \(Python's generator\)")
def augmentation_from_one_seed_of_python():
    class Shifted(Samples):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + random.random(), y

    random.seed(5)
    fit(DDP(network()), data=Shifted())


def loop(order: str, only: tuple = (0, 1)):
    """Train with the calls in this order; only the ranks in ``only`` call ``step()``.

    The letters stand for backward (b, or n under ``no_sync()``), ``watch.step()`` (s),
    ``optimizer.step()`` (o) and ``zero_grad()`` (z).
    """
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    x = torch.randn(4, 6)
    with Guard(ddp, optimizer, every=1, patience_s=20) as watch:
        for _ in range(2):
            for call in order:
                inside = ddp.no_sync() if call == "n" else contextlib.nullcontext()
                with inside:
                    if call in "bn":
                        ddp(x).square().mean().backward()
                if call == "s" and dist.get_rank() in only:
                    watch.step()
                if call == "o":
                    optimizer.step()
                if call == "z":
                    optimizer.zero_grad()


@case(
    r"\.grad is empty or zero on all ranks: step\(\) was called after zero_grad\(\)\. C"
)
def step_after_zero_grad():
    loop("bozs")


@case(r"The last forward was inside of no_sync\(\): if more passes follow")
def step_in_every_pass_without_synchronization():
    loop("nsbsoz")


@case(r"step 2: .*step\(\) was called 2 times since the last optimizer\.step\(\): call")
def step_in_every_pass():
    loop("bsbsoz")


@case(r"step 2: every gradient is 2\.\d+ times the mean")
def gradients_that_are_never_zeroed():
    loop("bso")


@case(
    r"not at the same place: rank 0 at step 1, rank 1 at optimizer\.step\(\), with no w"
)
def step_on_one_rank():
    loop("bsoz", only=(0,))


@case(r"warns: guard: preflight's loss\(\) reads the number of ranks")
def a_preflight_whose_factor_cancels():
    ddp = DDP(network())
    x = torch.randn(4, 6)
    with Guard(ddp) as watch:
        watch.preflight(lambda m, b: m(b).square().mean() / dist.get_world_size(), x)


class Copied(Dataset):
    """A data set that holds each of 24 samples twice, at random places."""

    def __init__(self, *order):
        draw = torch.Generator().manual_seed(1)
        self.order, self.x = (
            list(order),
            torch.randn(24, 6, generator=draw).repeat(2, 1),
        )
        self.x = self.x[torch.randperm(48, generator=draw)]

    def __len__(self):
        """Count the samples of this rank."""
        return len(self.order)

    def __getitem__(self, index):
        """Return a sample and its target."""
        x = self.x[self.order[index]]
        return x, x[:2]


class Shards(IterableDataset):
    """A stream of the given shards, of six samples each; some samples are equal."""

    def __init__(self, *shards):
        self.shards, self.data = shards, Copied(*range(48))

    def __iter__(self):
        """Yield the samples of these shards."""
        for shard in self.shards:
            yield from (self.data[i] for i in range(6 * shard, 6 * shard + 6))


@case(
    r"the end of epoch 0: \d+ samples were on more than one rank.*Deal one order out "
    r"by rank and worker: the same seed.*\d+ came twice on one rank: if the data set"
)
def shards_shuffled_by_each_rank():
    shards = Shards(*((0, 1, 2, 3) if odd() else (2, 3, 4, 5)))
    fit(DDP(network()), data=DataLoader(shards, 4))


@case(r"step 1: ranks 0, 1 got exactly the same samples.*Seed the sampler's generator")
def drawn_by_weight_from_one_seed():
    seed, data = torch.Generator().manual_seed(3), Samples()
    weights = torch.utils.data.WeightedRandomSampler([1.0] * 48, 24, generator=seed)
    fit(DDP(network()), data=DataLoader(data, 4, sampler=weights))


@case(r"step 1: ranks 0, 1 got exactly the same samples.*Seed the sampler's generator")
def indices_drawn_from_one_seed():
    x, ddp = Samples().x, DDP(network())
    seed = torch.Generator().manual_seed(3)
    drawn = torch.utils.data.RandomSampler(x, True, 24, seed)
    with Guard(ddp) as watch:
        for rows in watch.epoch(DataLoader(range(48), 4, sampler=drawn), 0):
            mse(ddp(x[rows]), x[rows, :2]).backward()
            watch.step()
            ddp.zero_grad()


class Kept:
    """A batch sampler that draws its batches once, so ``set_epoch`` has no effect."""

    def __init__(self, sampler):
        self.sampler, self.set_epoch = sampler, sampler.set_epoch
        self.batches = list(torch.utils.data.BatchSampler(sampler, 4, False))

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from self.batches


@case(
    r"the end of epoch 1: the samples came in the order of the epoch before on ranks "
    r"0, 1, though Kept shuffles.*batches made once in __init__"
)
def batches_that_are_drawn_once():
    data = Samples()
    batches = Kept(DistributedSampler(data))
    fit(DDP(network()), data=DataLoader(data, batch_sampler=batches), epochs=batches)


class Epochs(IterableDataset):
    """A stream that deals out another order in each epoch."""

    def __init__(self):
        self.data, self.epoch, self.rank = Samples(), 0, dist.get_rank()

    def set_epoch(self, epoch):
        """Choose the order of this epoch."""
        self.epoch = epoch

    def __iter__(self):
        """Yield this rank's samples."""
        draw = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(48, generator=draw).tolist()
        yield from (self.data[i] for i in order[self.rank :: 2])


@case(
    r"the end of epoch 1: the samples .*though Epochs has set_epoch\(\)\..*"
    r"persistent_workers=False"
)
def an_epoch_that_persistent_workers_never_learn():
    options = {"num_workers": 1, "multiprocessing_context": "fork"}
    data = Epochs()
    loader = DataLoader(data, 4, persistent_workers=True, **options)
    fit(DDP(network()), data=loader, epochs=data)


@case(r"warns: guard: the end of epoch 1: the samples .*Was it called")
def a_stream_whose_epoch_is_never_set():
    fit(DDP(network()), data=DataLoader(Epochs(), 4))


class Centers(nn.Module):
    """A criterion with weights, like ArcFace: alike on all ranks, or seeded by rank."""

    def __init__(self, alike: bool):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0 if alike else dist.get_rank())
            self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, y):
        """Return the mean distance to the nearest center."""
        return torch.cdist(y, self.weight).min(1).values.mean()


def with_centers(alike: bool):
    """Train a wrapped model together with a criterion that no wrapper covers."""
    ddp, centers = DDP(network()), Centers(alike)
    optimizer = torch.optim.SGD([*ddp.parameters(), *centers.parameters()], 0.1)
    fit(ddp, optimizer, forward=lambda x, y: centers(ddp(x)))


@case(
    r"the start: the optimizer's parameter outside of the model, group 0\[4\] of "
    r"optimizer 0, \(3, 2\), is not the same .*Wrap the criterion in DDP"
)
def weights_of_a_criterion_seeded_by_rank():
    with_centers(alike=False)


@case(r"step 2: the optimizer's parameter outside of the model, group 0\[4\]")
def weights_of_a_criterion_that_nobody_synchronizes():
    with_centers(alike=True)


@case(r"step 1: the gradient 0\.weight .*Nothing in this model synchronizes .*a set")
def an_exchange_by_hand_in_the_order_of_a_set():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    order = list(net.parameters())[:: -1 if odd() else 1]
    with Guard(net, torch.optim.SGD(net.parameters(), 0.1)) as watch:
        (net(torch.randn(4, 6)) ** 2).mean().backward()
        flat = torch.cat([p.grad.flatten() for p in order])
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in order])
        for p, part in zip(order, parts, strict=True):
            p.grad = part.view_as(p) / 2
        watch.step()


@case(r"step 1: the gradient 2\.weight .*this one is whole: .*on the root too")
def a_root_that_nobody_sharded():
    net = network()
    fully_shard(net[0])
    fit(net, torch.optim.SGD(net.parameters(), 0.1, foreach=False))


class Noisy(torch.optim.SGD):
    """An SGD that adds noise, drawn by each rank on its own."""

    @torch.no_grad()
    def step(self, closure=None):
        """Take a step, and add the noise to the parameters."""
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)


@case(
    r"step 2: the parameter module\.0\.weight .*Likely, in this order: .*draws random"
)
def an_optimizer_with_noise():
    ddp = DDP(network())
    fit(ddp, Noisy(ddp.parameters(), 0.1))


@case(r"step 1: the parameter module\.0\.weight .*Its max_norm= rescales")
def a_table_whose_rows_are_rescaled():
    ddp = DDP(nn.Sequential(nn.Embedding(48, 2, max_norm=0.5)))
    rows = lambda x: (x[:, 0].abs() * 15).long().clamp(max=47)  # noqa: E731
    fit(ddp, forward=lambda x, y: ddp(rows(x)).sum())


@case(r"the start of epoch 0: the data sets .*already cut by rank, it needs no Dist")
def a_share_that_is_shared_out_again():
    part = torch.utils.data.Subset(Samples(), range(dist.get_rank(), 48, 2))
    fit(DDP(network()), data=part)


@case(r"step 4: the optimizer's settings .*lr=.*a scheduler's loss, must be one value")
def a_rate_steered_by_a_rank_s_own_loss():
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    fit(ddp, optimizer, after=lambda n: sched.step(n if odd() else -n))


class Queue(nn.Module):
    """A model with a queue of earlier keys, which is overwritten in turn."""

    def __init__(self):
        super().__init__()
        self.inner, self.at = network(), 0
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("queue", torch.randn(2, 16, generator=draw))

    def forward(self, x):
        """Compare with the queue, and write this batch's keys into it."""
        y = self.inner(x)
        keys, old = y.detach().T, self.queue.clone()
        self.queue[:, self.at : self.at + 4] = keys
        self.at = (self.at + 4) % 16
        return (y @ old).square().mean(1, keepdim=True).expand(-1, 2)


@case(r"warns: guard: each rank writes its own samples into .*module\.queue.*Gather")
def a_queue_of_each_rank_s_own_keys():
    fit(DDP(Queue()))


def ahead(loss, *inner, net=None):
    """Run a preflight on four samples, which each rank has drawn for itself."""
    x = torch.randn(4, 6)
    with Guard(DDP(net or network(*inner))) as watch:
        watch.preflight(loss, x)


@case(r"warns: guard: preflight's loss draws random .*\(the CPU's generator\).*outside")
def a_preflight_of_a_loss_with_noise():
    ahead(lambda m, x: mse(m(x + torch.randn_like(x)), x[:, :2]))


@case(r"warns: guard: preflight's loss draws random .*\(a generator of its own\)")
def a_preflight_of_a_loss_with_noise_of_its_own():
    noise = torch.Generator().manual_seed(5)
    ahead(lambda m, x: mse(m(x + torch.randn(x.shape, generator=noise)), x[:, :2]))


@case(
    r"preflight: the ranks' gradient is not .*On the same union each rank's own "
    r"gradient is another one \(norms by rank: .*a criterion's own weights"
)
def a_preflight_of_a_criterion_seeded_by_rank():
    centers = Centers(alike=False)
    ahead(lambda m, x: centers(m(x)))


def play(training):
    """Run a training on this rank; return what the guard said, or "" if nothing."""
    torch.set_num_threads(1)
    torch.manual_seed(100 + dist.get_rank())
    random.seed(100 + dist.get_rank())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            training()
        except GuardError as error:
            return str(error)
    told = [str(w.message) for w in caught if "guard: " in str(w.message)]
    return " ".join(["warns:", *told]) if told else ""


def run(folder, module, name):
    """Import this module on a rank, and play one of its cases there."""
    import importlib
    import sys

    if folder not in sys.path:
        sys.path.append(folder)
    found = importlib.import_module(module)
    return found.play(found.CASES[name][0])


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", CASES)
def test_the_three_lines_say_what_is_wrong(ranks, name):
    """Both ranks raise the same sentence; a warning comes from the first rank only."""
    file, said = Path(__file__), CASES[name][1]
    first, second = ranks.run(run, str(file.parent), file.stem, name, timeout=60)
    assert re.search(said, first), first
    assert second == ("" if first.startswith("warns:") else first)


def test_a_group_smaller_than_the_sampler_is_named():
    """With two models on four ranks, it says which ranks average their gradients.

    It also names the shares of the data that no rank of a model reads.
    """

    def pairs():
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader, DistributedSampler

        from allranks.guard import Guard, GuardError

        half = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
        ddp, said = DDP(nn.Linear(2, 2), process_group=half), []
        for size in (None, 4):
            try:
                with Guard(ddp, world_size=size) as watch:
                    data = list(range(16))
                    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
                    next(watch.epoch(loader, 0))
            except GuardError as error:
                said.append(str(error))
        return said

    with Ranks(4) as ranks:
        found = ranks.run(pairs, timeout=60)
    assert found[0] == found[1] and found[2] == found[3]
    dealt, asked = found[2]
    assert re.search(
        r"deals to 4, and the model's 2 ranks take the shares \[2, 3\].*averaged over "
        r"ranks 2, 3 of 4 only: give DDP the group",
        dealt,
    )
    assert re.search(r"4 ranks were asked for, the model's group has 2 of 4", asked)


def test_ranks_may_say_unequally_much(ranks):
    """Ten numbers from one rank and a hundred from the other both arrive complete."""

    def said():
        import torch
        import torch.distributed as dist

        from allranks.guard.exchange import Exchange

        exchange = Exchange(None, torch.device("cpu"), 20)
        count = 100 if dist.get_rank() else 10
        rows = exchange.integers("here", list(range(count)))
        exchange.close()
        return rows

    for rows in ranks.run(said, timeout=60):
        assert rows == [list(range(10)), list(range(100))]


def test_a_loader_is_found_in_what_wraps_it():
    """A loader is found inside a wrapper if it is the only one there."""
    loader = DataLoader(range(4))
    wrapped = Ahead(loader)
    assert inner(wrapped) is loader
    wrapped.other = DataLoader(range(4))
    assert inner(wrapped) is wrapped


def test_a_data_set_is_known_by_what_it_has_for_each_sample(tmp_path):
    """What counts is the files' order, not their folder nor how often they were read.

    A fingerprint also says whether it covers the whole data set or only a part of it.
    """
    here, there = Samples(), Samples()
    there.files = [name.replace("/data", "/node1/scratch") for name in here.files]
    there.reads = 3
    assert fingerprint(here) == fingerprint(there)
    assert not fingerprint(here)[1]
    there.files = there.files[::-1]
    assert fingerprint(here) != fingerprint(there)
    pairs = [(f"{i}.png", i) for i in range(9)]
    assert fingerprint(pairs) != fingerprint(pairs[::-1])
    assert fingerprint(pairs)[1]
    assert fingerprint([object(), object()]) == (0, False)


def test_only_a_loss_that_asks_for_the_ranks_is_told_of():
    """A read of the number of ranks is found in the loss and in functions it calls."""
    world_size = 2

    def scaled(model, x):
        return model(x).mean() / world_size

    assert reads_world_size(scaled)
    assert reads_world_size(lambda model, x: scaled(model, x))
    assert reads_world_size(functools.partial(scaled, None))
    assert not reads_world_size(lambda model, x: model(x).mean())
    assert not reads_world_size(len)


@pytest.mark.parametrize("seed", range(8))
def test_gradients_that_differ_by_their_rounding_are_equal(seed):
    """Gradients pass if they differ only by what float32 rounds off on the way."""
    chance = torch.Generator().manual_seed(seed)
    union = {name: torch.randn(50, generator=chance) for name in "ab"}
    noise = {name: 1e-7 * torch.randn(50, generator=chance) for name in "ab"}
    ours = {name: union[name] + noise[name] for name in union}
    table = _products(ours, union).float()[None].double()
    assert judge(list("ab"), table, [4], 1, tolerance=1e-6) == ""
    ours["b"] = ours["b"] + 1e-3
    table = _products(ours, union).float()[None].double()
    assert "most in b" in judge(list("ab"), table, [4], 1, tolerance=1e-4)
