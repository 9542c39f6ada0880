"""The guard and trainings in which ranks own parts, average by hand, or act alone.

Each case has a pattern for what the guard must say; "^$" demands silence. Most come in
pairs, the wrong program and the right one that looks like it.
"""

import dataclasses
import random
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from allranks import Ranks
from allranks.guard import Guard
from tests.allranks.guard.test_laws import mse, play, run  # noqa: F401

CASES = {}


def case(said: str):
    """Register a training as a case, with a pattern for what the guard must say."""

    def add(function):
        CASES[function.__name__.replace("_", " ")] = function, said
        return function

    return add


def network():
    """Build a small network with the same weights on all ranks."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def drawn(*shape):
    """Draw the same numbers on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def fit(model, optimizer=None, loss=None, *, before=None, after=None, step=None):
    """Train with the usual loop; ``step`` replaces forward and backward."""
    data = TensorDataset(drawn(48, 6), drawn(48, 2))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.01)
    with Guard(model, optimizer, patience_s=20) as watch:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for x, y in watch.epoch(loader, epoch):
                model.zero_grad()
                if step:
                    step(x, y)
                else:
                    (loss or (lambda x, y: mse(model(x), y)))(x, y).backward()
                if before:
                    before()
                watch.step()
                optimizer.step()
                if after:
                    after()


class Muon(torch.optim.Optimizer):
    """An optimizer in which the owner of a matrix moves it and sends it to all.

    Args:
        parameters: of the model.
        reduces: whether it averages the gradients itself, for a model without DDP.
        sends: whether the owner sends its matrices at all.
        everywhere: whether each rank holds a momentum of everything.
    """

    def __init__(self, parameters, reduces=False, sends=True, everywhere=False):
        super().__init__(parameters, {"lr": 0.02})
        self.reduces, self.sends = reduces, sends
        for p in self.param_groups[0]["params"] if everywhere else ():
            self.state[p]["momentum"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        """Let each owner move its matrices, and send them."""
        for place, p in enumerate(self.param_groups[0]["params"]):
            owner = place % 2
            if self.reduces:
                dist.reduce(p.grad, owner)
            if owner == dist.get_rank():
                held = self.state[p].setdefault("momentum", torch.zeros_like(p))
                held.mul_(0.9).add_(p.grad)
                p.add_(held / held.norm(), alpha=-0.02)
            if self.sends:
                dist.broadcast(p.data, owner)


@case("^$")
def a_momentum_that_only_the_owner_holds():
    ddp = DDP(network())
    fit(ddp, Muon(ddp.parameters()))


@case("^$")
def a_momentum_that_all_hold_and_the_owner_fills():
    ddp = DDP(network())
    fit(ddp, Muon(ddp.parameters(), everywhere=True))


@case("^$")
def an_optimizer_that_averages_by_itself():
    net = network()
    fit(net, Muon(net.parameters(), reduces=True))


@case(r"step 2: the parameter module\.0\.weight .* is not the same on all ranks")
def an_owner_that_sends_nothing():
    ddp = DDP(network())
    fit(ddp, Muon(ddp.parameters(), sends=False))


def zero1(sends=True, zeroes=True):
    """Let each rank's optimizer hold every second parameter."""
    ddp = DDP(network())
    parameters = list(ddp.parameters())
    optimizer = torch.optim.AdamW(parameters[dist.get_rank() :: 2], 0.01)
    if not zeroes:
        ddp.zero_grad = optimizer.zero_grad

    def after():
        for place, p in enumerate(parameters if sends else []):
            dist.broadcast(p.data, place % 2)

    fit(ddp, optimizer, after=after)


@case("^$")
def zero_1_by_hand():
    zero1()


@case(r"step 2: the parameter module\.0\.weight .* is not the same on all ranks")
def zero_1_whose_owners_send_nothing():
    zero1(sends=False)


@case(r"step 2: the gradient of module\.0\.weight .* not the mean .* not zeroed")
def zero_1_that_zeroes_its_own_part_only():
    zero1(zeroes=False)


def flat(returns=True):
    """Keep this rank's shard of all weights, flat, as the optimizer's parameter."""
    ddp, rank = DDP(network()), dist.get_rank()
    parameters = list(ddp.parameters())
    whole = torch.cat([p.detach().flatten() for p in parameters])
    half = whole.numel() // 2
    own = nn.Parameter(whole[half * rank : half * (rank + 1)].clone())

    def before():
        grad = torch.cat([p.grad.flatten() for p in parameters])
        own.grad = grad[half * rank : half * (rank + 1)].clone()

    def after():
        dist.all_gather_into_tensor(whole, own.detach())
        parts = whole.split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.data.copy_(part.view_as(p))

    optimizer = torch.optim.AdamW([own], 0.01)
    fit(ddp, optimizer, before=before, after=after if returns else None)


@case("^$")
def a_flat_shard_that_comes_back():
    flat()


@case(r"^warns: guard: no parameter has changed .*never copied back")
def a_flat_shard_that_never_comes_back():
    flat(returns=False)


@case(r"^warns: guard: no parameter has changed .*learning rate 0")
def a_rate_of_zero_under_fsdp2():
    net = fully_shard(network())
    fit(net, torch.optim.SGD(net.parameters(), 0.0))


@case("^$")
def a_warmup_that_begins_at_zero():
    ddp = DDP(network())
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: n / 5)
    fit(ddp, optimizer, after=rates.step)


@case(r"the optimizer does not hold module\.2\.weight and 1 more: it never moves")
def a_layer_that_no_rank_steps():
    ddp = DDP(network())
    fit(ddp, torch.optim.SGD(list(ddp.parameters())[:2], 0.1))


@case(r"step 1: the gradient .*Several backward passes went through one forward")
def two_backwards_of_one_forward():
    ddp = DDP(network())

    def step(x, y):
        out = ddp(x)
        mse(out, y).backward(retain_graph=True)
        out.abs().mean().backward()

    fit(ddp, step=step)


@case(r"warns: .*mean_of_means.* leaves 0\.5 times their mean: it divides .* twice")
def a_communication_hook_that_divides_twice():
    def mean_of_means(_state, bucket):
        sums = dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future()
        return sums.then(lambda done: done.value()[0] / 2)

    ddp = DDP(network())
    ddp.register_comm_hook(None, mean_of_means)
    fit(ddp)


def scaled(by):
    """Scale all gradients between backward and the guard's step."""
    ddp = DDP(network())

    def before():
        for p in ddp.parameters():
            p.grad *= by() if callable(by) else by

    fit(ddp, torch.optim.SGD(ddp.parameters(), 0.1), before=before)


@case(r"warns: guard: every gradient is 0\.5 times .* once too often")
def gradients_that_the_loop_divides_again():
    scaled(0.5)


@case("^$")
def gradients_that_are_scaled_by_another_factor_each_time():
    factors = iter(torch.linspace(0.9, 0.2, 99).tolist())
    ddp = DDP(network())

    def before():
        factor = next(factors)
        for p in ddp.parameters():
            p.grad *= factor

    fit(ddp, torch.optim.SGD(ddp.parameters(), 0.1), before=before)


@case(r"same\(mean\): the buffer's value mean, .* SyncBatchNorm")
def the_same_of_a_buffer():
    net = nn.BatchNorm1d(6)
    with Guard(net) as watch:
        net(torch.randn(4, 6))
        watch.same(mean=net.running_mean)


class Codes(nn.Module):
    """A codebook whose rows follow the samples; ranks may share the statistics."""

    def __init__(self, shares):
        super().__init__()
        self.net, self.shares = network(), shares
        self.register_buffer("book", drawn(5, 2))

    def forward(self, x):
        """Return how far the samples are from the nearest code."""
        z = self.net(x)
        index = torch.cdist(z, self.book).argmin(1)
        near = self.book[index]
        with torch.no_grad():
            chosen = nn.functional.one_hot(index, 5).float()
            counts, sums = chosen.sum(0), chosen.t() @ z
            if self.shares:
                dist.all_reduce(counts)
                dist.all_reduce(sums)
            self.book += 0.1 * (sums - counts[:, None] * self.book)
        return (z - near).square().mean()


@case(r"warns: .*test_owners\.py, line \d+: \w+ takes .* its own samples.*all_reduce")
def a_codebook_that_each_rank_moves():
    ddp = DDP(Codes(shares=False), broadcast_buffers=False)
    fit(ddp, loss=lambda x, y: ddp(x))


@case("^$")
def a_codebook_that_all_ranks_move():
    ddp = DDP(Codes(shares=True), broadcast_buffers=False)
    fit(ddp, loss=lambda x, y: ddp(x))


def with_center(shares=False, replaces=False):
    """Subtract a moving average of the outputs, a plain tensor, as DINO does."""
    ddp, held = DDP(network()), [torch.zeros(1, 2)]

    def loss(x, y):
        out = ddp(x)
        batch = out.detach().mean(0, keepdim=True)
        if shares:
            dist.all_reduce(batch)
            batch /= 2
        result = mse(out - held[0], y)
        if replaces:
            held[0] = held[0] * 0.9 + batch * 0.1
        else:
            held[0].mul_(0.9).add_(batch, alpha=0.1)
        return result

    fit(ddp, loss=loss)


@case(r"warns: .*: sub takes a tensor that each rank computes from its own samples")
def a_center_that_each_rank_replaces():
    with_center(replaces=True)


@case("^$")
def a_center_that_all_ranks_replace():
    with_center(shares=True, replaces=True)


@case(r"warns: .*: index takes a tensor that each rank computes from its own samples")
def centers_of_classes_that_each_rank_moves():
    ddp, centers = DDP(network()), drawn(3, 2)

    def loss(x, y):
        out, label = ddp(x), (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        result = mse(out, centers[label])
        for k in label.unique():
            centers[k] += 0.1 * (out[label == k].detach().mean(0) - centers[k])
        return result

    fit(ddp, loss=loss)


@case("^$")
def a_queue_of_each_rank_s_own_features():
    ddp, queue = DDP(network()), [torch.randn(16, 2)]

    def loss(x, y):
        z = ddp(x)
        result = (z @ queue[0].t()).square().mean()
        queue[0] = torch.cat([z.detach(), queue[0]])[:16]
        return result

    fit(ddp, loss=loss)


@case("^$")
def a_state_that_goes_from_batch_to_batch():
    ddp, state = DDP(nn.GRUCell(6, 2)), [torch.zeros(4, 2)]

    def loss(x, y):
        out = ddp(x, state[0])
        state[0] = out.detach()
        return mse(out, y)

    fit(ddp, loss=loss)


@case("^$")
def a_target_for_each_sample_that_its_losses_move():
    ddp, targets = DDP(network()), torch.zeros(48, 2)

    def loss(x, y):
        at = torch.arange(4) * 12 + (1e4 * x[:, 0]).long().abs() % 12
        out = ddp(x)
        targets[at] = 0.7 * targets[at] + 0.3 * out.detach()
        return mse(out, targets[at])

    fit(ddp, loss=loss)


@case(r"warns: .*: clamp is part of the loss on rank 1 and not on rank 0, at 3 checks")
def an_operation_that_one_rank_alone_does():
    ddp = DDP(network())

    def loss(x, y):
        out = ddp(x)
        return mse(out.clamp(-0.5, 0.5) if dist.get_rank() else out, y)

    fit(ddp, loss=loss)


@case("^$")
def operations_that_chance_decides():
    ddp = DDP(network())

    def loss(x, y):
        rank = dist.get_rank()
        for draw in range(3):
            random.seed(1000 * rank + 7 * draw + int(1e4 * abs(x[0, 0])))
            x = x.flip(1) if random.random() < 0.5 else x
        return mse(ddp(x), y)

    fit(ddp, loss=loss)


@case("^$")
def a_rank_that_logs():
    ddp, log, mean = DDP(network()), [], torch.zeros(2)

    def loss(x, y):
        out = ddp(x)
        if dist.get_rank() == 0:
            log.append(out.view(-1).detach().abs().max())
            mean.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)
        return mse(out, y)

    fit(ddp, loss=loss)


def noisy(seed, numpy=False, rows=True):
    """Add noise from a generator of one's own."""
    ddp = DDP(network())
    own, other = torch.Generator().manual_seed(seed), np.random.default_rng(seed)

    def loss(x, y):
        shape = x.shape if rows else (6,)
        noise = torch.randn(shape, generator=own)
        if numpy:
            noise = torch.from_numpy(other.normal(size=tuple(shape))).float()
        return mse(ddp(x + noise), y)

    fit(ddp, loss=loss)


@case(r"step 2: ranks 0, 1 draw the same random numbers at .*\(randn\), .*seed \+ rank")
def a_generator_with_one_seed_on_all_ranks():
    noisy(seed=5)


@case(r"step 2: ranks 0, 1 draw the same random numbers at .*NumPy's")
def a_generator_of_numpy_with_one_seed():
    noisy(seed=5, numpy=True)


@case("^$")
def a_generator_with_a_seed_for_each_rank():
    noisy(seed=5 + dist.get_rank())


@case("^$")
def a_generator_of_numpy_with_a_seed_for_each_rank():
    noisy(seed=5 + dist.get_rank(), numpy=True)


@case("^$")
def a_shared_generator_for_what_all_samples_share():
    noisy(seed=5, rows=False)


def with_codes(restart=None):
    """Quantize with a codebook of as many codes as a batch has samples."""
    ddp, codes = DDP(network()), drawn(4, 2)
    shared, chance = torch.Generator().manual_seed(3), np.random.default_rng(3)

    def loss(x, y):
        nonlocal codes
        chance.random()  # it moves, but what it draws is no part of the loss
        if restart == "in place":
            codes += 0.1 * torch.randn(4, 2, generator=shared)
        z = ddp(x)
        if restart == "picks":
            picked = z.detach()[torch.randint(4, (4,), generator=shared)]
            dist.broadcast(picked, 0)
            codes = 0.5 * (codes + picked)
        nearest = torch.cdist(z.detach(), codes).argmin(1)
        found = mse(z, codes[nearest])
        mean = z.detach().mean(0)
        dist.all_reduce(mean)
        if restart == "anew":
            codes = 0.9 * codes + 0.1 * mean
        else:
            codes.lerp_(mean.expand(4, 2), 0.1)
        return found

    fit(ddp, loss=loss)


@case("^$")
def a_codebook_with_a_row_for_each_sample():
    with_codes()


@case("^$")
def a_codebook_that_each_step_makes_anew():
    with_codes("anew")


@case("^$")
def a_codebook_with_restarts_from_a_shared_generator():
    with_codes("in place")


@case("^$")
def a_codebook_that_gets_samples_picked_with_a_shared_generator():
    with_codes("picks")


@case("^$")
def an_order_from_a_shared_generator():
    ddp, shared = DDP(network()), torch.Generator().manual_seed(3)

    def loss(x, y):
        at = torch.randperm(len(x), generator=shared)
        return mse(ddp(0.7 * x + 0.3 * x[at]), 0.7 * y + 0.3 * y[at])

    fit(ddp, loss=loss)


@case("^$")
def times_of_samples_that_numpy_computes():
    ddp, steps = DDP(network()), iter(range(1, 100))

    def loss(x, y):
        times = np.linspace(0, 1 / next(steps), len(x))[:, None]
        return mse(ddp(x + torch.from_numpy(times).float()), y)

    fit(ddp, loss=loss)


@case(r"step 2: ranks 0, 1 draw the same random numbers at .*NumPy's")
def a_generator_of_python_with_one_seed():
    ddp, own = DDP(network()), random.Random(5)

    def loss(x, y):
        noise = [[own.gauss(0, 1) for _ in range(6)] for _ in x]
        return mse(ddp(x + torch.tensor(noise)), y)

    fit(ddp, loss=loss)


@case(r"warns: .*line \d+: gradients are given where parameters are wanted")
def a_clip_that_is_given_gradients():
    ddp = DDP(network())

    def before():
        grads = [p.grad for p in ddp.parameters()]
        nn.utils.clip_grads_with_norm_(grads, 1e-3, nn.utils.get_total_norm(grads))

    fit(ddp, before=before)


@case("^$")
def a_clip_that_is_given_parameters():
    ddp = DDP(network())
    fit(ddp, before=lambda: nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3))


def gathered(model, batch, wrapped):
    """Return InfoNCE over all ranks' features, of which only one's own have grads."""
    first, second = (nn.functional.normalize(model(x), dim=1) for x in batch)
    if model is wrapped:
        both = []
        for own in first, second:
            parts = [torch.empty_like(own) for _ in range(2)]
            dist.all_gather(parts, own.detach())
            parts[dist.get_rank()] = own
            both.append(torch.cat(parts))
        first, second = both
    labels = torch.arange(len(first))
    return nn.functional.cross_entropy(first @ second.t() / 0.1, labels)


def ahead(loss, model=None):
    """Run a preflight of this rank's half of eight samples."""
    ddp, rank = model or DDP(network()), dist.get_rank()
    x = drawn(8, 6)[4 * rank : 4 * rank + 4]
    with Guard(ddp) as watch:
        watch.preflight(lambda m, x: loss(m, x, ddp), x)


@case(r"0\.5 times .*only this rank's pass gradients on\? Multiply it by the number")
def a_loss_of_gathered_features():
    ahead(lambda m, x, ddp: gathered(m, (x, x.sin()), ddp))


@case(r"0\.5 times .*Is the loss a sum over samples\? Then make it their mean")
def a_loss_that_sums():
    ahead(lambda m, x, _: m(x).square().sum())


@case(r"On the same union .*that only some ranks add \(if rank == 0\)")
def a_term_that_one_rank_alone_adds():
    ahead(lambda m, x, _: m(x).square().mean() * (1 + dist.get_rank()))


def auc(score, label):
    """Return the share of pairs that are in the right order."""
    gaps = score[label == 1][:, None] - score[label == 0]
    return (gaps > 0).double().mean()


def report(value_of):
    """Report an AUC of samples whose halves differ, and have it checked."""
    score = drawn(64) + torch.linspace(-1, 1, 64)
    label = (score + drawn(64).flip(0) > 0).float()
    own = slice(32 * dist.get_rank(), 32 * dist.get_rank() + 32)
    value = value_of(score, label, own)
    with Guard(None) as watch:
        watch.metric_of(value, auc, score[own], label[own], samples=64)


@case(r"metric_of: reported is \S+ on ranks 0, 1; for all 64 samples at once it is")
def a_mean_of_the_ranks_auc():
    def mean(score, label, own):
        value = auc(score[own], label[own])
        dist.all_reduce(value)
        return value / 2

    report(mean)


@case("^$")
def an_auc_of_all_samples():
    report(lambda score, label, own: auc(score, label))


@case(r"metric_of: reported is nan on ranks 0, 1; for all 64 samples at once it is")
def an_auc_that_is_no_number():
    report(lambda score, label, own: float("nan"))


@case(r"metric: reported is nan on ranks 0, 1; the mean over all 4 samples is 1\.5")
def a_mean_that_is_no_number():
    with Guard(None) as watch:
        watch.metric(float("nan"), total=3.0, count=2)


@case("^$")
def a_mean_of_what_is_no_number():
    with Guard(None) as watch:
        watch.metric(float("nan"), total=float("nan"), count=2)


@case(
    r"tensors are torch\.int64 on rank 0, torch\.float32 on rank 1\. Cast them to one"
)
def a_metric_of_a_rank_without_samples():
    own = torch.tensor([] if dist.get_rank() else [1, 2])
    with Guard(None, patience_s=20) as watch:
        watch.metric_of(1.5, lambda x: x.double().mean(), own)


def join(optimizer, scaler=None):
    """Train inside of Join, with 7 steps on one rank and 4 on the other."""
    ddp = DDP(nn.Linear(6, 1))
    stepper = optimizer(ddp.parameters())
    with Guard(ddp, stepper, scaler=scaler, patience_s=20) as watch:
        with ddp.join():
            for _ in range(4 if dist.get_rank() else 7):
                stepper.zero_grad()
                loss = ddp(torch.randn(4, 6)).square().mean()
                (scaler.scale(loss) if scaler else loss).backward()
                watch.step()
                scaler.step(stepper) if scaler else stepper.step()
                if scaler:
                    scaler.update()
        watch.check()


def sgd(parameters):
    """Build an optimizer without state."""
    return torch.optim.SGD(parameters, 0.05)


@case(r"^warns: guard: the model trains inside of Join[^:]*: step\(\) [^:]*$")
def replicas_after_join():
    join(sgd)


@case(r"after Join: the optimizer state .*made 7, 4 steps\. .*sends the weights .*not")
def an_optimizer_with_state_after_join():
    join(lambda parameters: torch.optim.AdamW(parameters, 0.01))


@case(r"after Join: the GradScaler is .*made 7, 4 steps\. Each called update\(\) as of")
def scales_that_grow_unequally_often_in_join():
    join(sgd, torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=5))


@case(r"warns: .*a GradScaler inside of Join: .*Keep it from growing")
def a_scale_that_may_grow_in_join():
    join(sgd, torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=500))


@case(r"^warns: guard: the model trains inside of Join[^:]*: step\(\) [^:]*$")
def a_scale_that_is_kept_from_growing_in_join():
    join(sgd, torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1 << 30))


@case("^$")
def a_preflight_that_leaves_no_trace():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls, self.log = network(), 0, []
            self.center = torch.zeros(2)
            self.own = torch.Generator().manual_seed(dist.get_rank())
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("ones", torch.ones(1).expand(2))
            self._calls, self._center = 0, torch.zeros(2)

        def forward(self, x):
            self.calls += 1
            self._calls += 1
            self._center += x.mean()
            self.log.append(x)
            torch.rand(1, generator=self.own)
            out = self.net(x)
            self.center += out.detach().mean(0)
            self.mean = self.mean * 0.9 + out.detach().mean(0)
            return out

    inner, outside = Counts(), Counts()
    private = np.random.default_rng(3)
    ddp = DDP(inner, broadcast_buffers=False)
    state = power.PowerSGDState(
        None, 1, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    ddp.register_comm_hook(state, power.powerSGD_hook)

    for _ in range(4):
        ddp(torch.randn(4, 6)).square().mean().backward()

    def everything():
        hook = {k: getattr(state, k) for k in power.PowerSGDState.__slots__[1:]}
        hook["rng"] = state.rng.get_state()
        held = [
            [m.calls, m._calls, len(m.log), m.center, m._center, m.mean, m.training]
            for m in (inner, outside)
        ]
        held += [m.own.get_state() for m in (inner, outside)]
        grads = [p.grad for p in ddp.parameters()]
        return repr((hook, held, grads, private.bit_generator.state))

    def loss(model, x):
        if model is None:
            return later
        out = model(x) * mask
        return out.square().mean() + outside(x).mean() + 0 * private.normal()

    mask = torch.ones(1).expand(2)
    before = everything()
    with Guard(ddp) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a loss that draws, and of the hook
        x = torch.randn(4, 6)
        watch.preflight(loss, x)
        watch.preflight(loss, x, backward=lambda b: loss(ddp, b[0]).backward())
    assert everything() == before
    later = 0.0  # loss() refers to it before there is a value


@case("^$")
def a_preflight_that_leaves_no_trace_in_a_sharded_module():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls = network(), 0

        def forward(self, x):
            self.calls += 1
            return self.net(x)

    model = fully_shard(Counts())
    with Guard(model) as watch:
        watch.preflight(lambda m, x: m(x).square().mean(), torch.randn(4, 6))
    assert model.calls == 0


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a communication hook of one's own is told."""

    factor: float = 1.0


def averaging(state, bucket):
    """Average a bucket, as DDP does."""
    tensor = bucket.buffer().mul_(state.factor / dist.get_world_size())
    future = dist.all_reduce(tensor, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


@case("^$")
def a_preflight_with_a_hook_whose_state_is_frozen():
    ddp = DDP(network())
    ddp.register_comm_hook(Settings(), averaging)
    with Guard(ddp) as watch:
        watch.preflight(lambda m, x: m(x).square().mean(), torch.randn(4, 6))


@case("preflight: rank 1 failed: ValueError: no such sample")
def a_preflight_with_a_hook_and_a_loss_that_fails_on_one_rank():
    ddp = DDP(network())
    ddp.register_comm_hook(Settings(), averaging)

    def loss(model, x):
        if dist.get_rank() == 1:
            raise ValueError("no such sample")
        return model(x).square().mean()

    with Guard(ddp) as watch:
        watch.preflight(loss, torch.randn(4, 6))


@case("^$")
def noise_that_one_line_draws_twice_into_the_same_memory():
    ddp, own = DDP(network()), torch.Generator().manual_seed(dist.get_rank())
    noise = torch.empty(4, 6)

    def loss(x, y):
        for _ in range(2):
            x = x + 0.1 * noise.normal_(generator=own)
        return mse(ddp(x), y)

    fit(ddp, loss=loss)


class LayerDrop(nn.Module):
    """Leaves out layers, the same ones on all ranks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head = nn.Linear(6, 2)
        self.coin = torch.Generator().manual_seed(5)

    def forward(self, x):
        """Return what the head makes of the input and the layers that are chosen."""
        for layer in self.layers:
            if not self.training or torch.rand((), generator=self.coin) > 0.6:
                x = x + layer(x)
        return self.head(x)


def with_layers_left_out(alone):
    """Train after a preflight in which, unlike in the steps, all layers are used."""
    ddp = DDP(LayerDrop(), find_unused_parameters=True)

    def loss(model, x):
        return model(x).square().mean()

    def by_hand(parts):
        with ddp.no_sync():
            loss(ddp, parts[0]).backward()
        for p in ddp.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2

    with Guard(ddp) as watch:
        x = torch.randn(4, 6)
        watch.preflight(loss, x, backward=by_hand if alone else None)
    fit(ddp, torch.optim.SGD(ddp.parameters(), 0.01), lambda x, y: loss(ddp, x))


@case("^$")
def layers_left_out_after_a_preflight():
    with_layers_left_out(alone=False)


@case("^$")
def layers_left_out_after_a_preflight_that_adds_by_hand():
    with_layers_left_out(alone=True)


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_and_what_is_right_is_not(ranks, name):
    """Both ranks raise the same sentence; a warning comes from the first rank only."""
    file, said = Path(__file__), CASES[name][1]
    first, second = ranks.run(run, str(file.parent), file.stem, name, timeout=60)
    assert re.search(said, first), first
    assert second == ("" if first.startswith("warns:") else first)


def pipelined(kind: str):
    """Train the stages of a pipeline, each in DDP, on a mesh of 2 replicas x 2 stages.

    Args:
        kind: "apart" computes each stage by itself; "zero bubble" takes torch's
            schedule, which goes past DDP's hooks.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.nn.parallel import DistributedDataParallel as DDP

    from allranks.guard import Guard, GuardError

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipe"))
    replicas, stage = mesh["data"].get_group(), mesh["pipe"].get_local_rank()
    torch.manual_seed(stage)
    # As many features everywhere, so that stages differ by their values only.
    parts = [DDP(nn.Linear(6, 6), process_group=replicas) for _ in range(2)]
    model = nn.ModuleList(parts)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stages = [
        PipelineStage(m, stage + 2 * i, 4, "cpu", group=mesh["pipe"].get_group())
        for i, m in enumerate(parts)
    ]
    schedule = schedules.ScheduleInterleavedZeroBubble(
        stages, 4, loss_fn=nn.functional.mse_loss
    )
    torch.manual_seed(10 + dist.get_rank())
    try:
        with Guard(model, optimizer, patience_s=20) as watch:
            for _ in range(3):
                optimizer.zero_grad()
                x, y = torch.randn(8, 6), torch.randn(8, 6)
                if kind == "apart":
                    sum(m(x).square().mean() for m in parts).backward()
                elif stage == 0:
                    schedule.step(x)
                else:
                    schedule.step(target=y, losses=[])
                watch.step()
                optimizer.step()
    except GuardError as error:
        return str(error)
    return ""


def test_stages_of_a_pipeline_are_compared_with_their_replicas_only():
    """The group is that of the stages' DDPs; what goes past their hooks is found."""
    with Ranks(4) as ranks:
        assert ranks.run(pipelined, "apart", timeout=60) == [""] * 4
    with Ranks(4) as ranks:
        said = ranks.run(pipelined, "zero bubble", timeout=60)
    assert all("is not the same on all ranks" in text for text in said), said
    assert all("zero bubbles" in text and "fully_shard" in text for text in said)
