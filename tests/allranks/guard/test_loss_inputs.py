"""The guard names the line where the ranks' losses are made of different things.

Data may differ by rank, and nothing else should. The trainings marked ``wrong`` break
this in one place; those marked ``right`` only look as if they did.
"""

import itertools
import math
import random
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from allranks import Ranks
from allranks.base import paths
from tests.allranks.guard.test_laws import (
    Decoded,
    Samples,
    fit,
    mse,
    network,
    odd,
    play,  # noqa: F401
)

ROOT = str(paths.ROOT)
WRONG, RIGHT = {}, {}


def wrong(said: str):
    """Register a training, with a pattern for what the guard must say about it."""

    def add(function):
        WRONG[function.__name__] = function, said
        return function

    return add


def right(function):
    """Register a training in which the guard must stay silent."""
    RIGHT[function.__name__] = function, ""
    return function


def own(*shape) -> torch.Tensor:
    """Draw a tensor that is different on each rank."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(dist.get_rank()))


def kinds(y):
    """Return class labels, 0 or 1, by the sign of each target's first entry."""
    return (y[:, 0] > 0).long()


def with_class_weights(model, skip: tuple = ()):
    """Train with class weights that differ by rank."""
    criterion = nn.CrossEntropyLoss(weight=1 + own(2))
    fit(model, forward=lambda x, y: criterion(model(x), kinds(y)), skip=skip)


@wrong(r"step 4: test_loss_inputs\.py, line \d+: nll_loss_forward takes a tensor ")
def class_weights_of_a_rank_s_own_share():
    with_class_weights(DDP(network()))


@right
def class_weights_that_are_meant():
    with_class_weights(DDP(network()), skip=("loss",))


@right  # the guard records no tape here, because it would disturb the compiler
def class_weights_beside_what_is_compiled():
    with_class_weights(torch.compile(DDP(network()), backend="eager"))


@right
def class_weights_beside_a_part_that_is_compiled():
    net = network()
    net[1].compile(backend="eager")
    with_class_weights(DDP(net))


@wrong(
    r"step 4: .*: binary_cross_entropy_with_logits takes a tensor \(2,\) that is not"
)
def positive_weights_of_a_rank_s_own_share():
    ddp, criterion = DDP(network()), nn.BCEWithLogitsLoss(pos_weight=1 + own(2))
    fit(ddp, forward=lambda x, y: criterion(ddp(x), (y > 0).float()))


@wrong(r"step 4: .*takes a parameter \(8, 6\) .*Nobody sends it")
def a_teacher_that_one_rank_moves():
    ddp, teacher = DDP(network()), network()

    def forward(x, y):
        with torch.no_grad():
            target = teacher(x)
        return mse(ddp(x), target)

    def after(step):
        if not odd():
            for p, q in zip(teacher.parameters(), ddp.parameters(), strict=True):
                p.data.lerp_(q.data, 0.1)

    fit(ddp, forward=forward, after=after)


@wrong(r"step 4: .*: exp takes a parameter \(\) .*it is ")
def a_temperature_with_an_optimizer_of_its_own():
    ddp, log_alpha = DDP(network()), torch.zeros((), requires_grad=True)
    rate = torch.optim.Adam([log_alpha], 0.01)

    def forward(x, y):
        found = ddp(x)
        rate.zero_grad()
        (log_alpha.exp() * (found.detach().mean() + 0.1 + odd())).backward()
        rate.step()
        return mse(found, y) + log_alpha.exp().detach() * found.square().mean()

    fit(ddp, forward=forward)


@wrong(
    r"warns: guard: .*line \d+: mul uses 0 on rank 1 and 0\.\d+ on rank 0|"
    r"warns: guard: .*line \d+: mul uses 0\.\d+ on rank 0 and 0 on rank 1"
)
def a_factor_that_a_logger_of_rank_0_steps():
    ddp, beta = DDP(network()), [0.0]

    def after(step):
        if not odd():
            beta[0] = min(1.0, step / 20)

    def forward(x, y):
        found = ddp(x)
        return mse(found, y) + beta[0] * found.square().mean()

    fit(ddp, forward=forward, after=after)


@wrong(r"warns: guard: .*: div takes a tensor that each rank computes")
def inputs_normalized_by_each_rank_s_own_average():
    ddp, norm = DDP(network()), {"mean": torch.zeros(6), "var": torch.ones(6)}

    def forward(x, y):
        norm["mean"] = 0.9 * norm["mean"] + 0.1 * x.mean(0)
        norm["var"] = 0.9 * norm["var"] + 0.1 * x.var(0)
        return mse(ddp((x - norm["mean"]) / (norm["var"] + 1e-5).sqrt()), y)

    fit(ddp, forward=forward)


class Balanced(nn.Module):
    """A model with a bias that is moved by a rule instead of a gradient."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.register_buffer("bias", torch.zeros(2))

    def forward(self, x):
        """Return the network's output plus the bias, and move the bias."""
        found = self.net(x) + self.bias
        with torch.no_grad():
            self.bias.add_(0.1 * found.softmax(-1).mean(0) - 0.05)
        return found


@wrong(r"warns: guard: .*: add takes a tensor that each rank computes")
def a_balance_that_nobody_sends():
    ddp = DDP(Balanced(), broadcast_buffers=False)
    fit(ddp)


def with_more(sampler: bool):
    """Train with a second loader, whose targets are not used."""
    more, ddp = Samples(), DDP(network())
    share = DistributedSampler(more) if sampler else None
    batches = itertools.cycle(DataLoader(more, 4, sampler=share, shuffle=not sampler))

    def forward(x, y):
        other, _ = next(batches)
        return mse(ddp(x), y) + 0.1 * ddp(other).square().mean()

    fit(ddp, forward=forward)


@wrong(r"warns: guard: a second loader reads its whole data set on every rank")
def a_second_loader_without_a_sampler():
    with_more(sampler=False)


@right
def a_second_loader_with_a_sampler():
    with_more(sampler=True)


@right
def a_first_loader_of_samples_that_each_rank_draws():
    data = Decoded(lambda x, y: (torch.randn(6), y))
    fit(DDP(network()), data=DataLoader(data, 4, shuffle=True))


@wrong(r"warns: .*the loss is divided by each rank's own count, \d+, \d+ by rank")
def a_mean_over_words_of_unequal_number():
    ddp = DDP(network())

    def forward(x, y):
        mask = (x.sum(1) > 0).float() if odd() else (x.sum(1) < 2).float()
        return ((ddp(x) - y).square().mean(1) * mask).sum() / mask.sum().clamp(min=1)

    fit(ddp, forward=forward)


@wrong(r"warns: guard: .*the loss is divided by each rank's own count")
def padding_that_cross_entropy_ignores():
    ddp = DDP(network())

    def forward(x, y):
        target = kinds(y)
        target[: int(odd()) + int(2 * x[0, 0].abs() > 1)] = -100
        return nn.functional.cross_entropy(ddp(x), target)

    fit(ddp, forward=forward)


@wrong(r"step 4: .*: index takes a tensor \(2,\) that is not the same")
def a_table_of_weights_by_label():
    ddp, weights = DDP(network()), 1 + own(2)

    def forward(x, y):
        return (weights[kinds(y)] * (ddp(x) - y).square().mean(1)).mean()

    fit(ddp, forward=forward)


@wrong(r"warns: guard: .*line \d+: mul uses .*, at three checks in a row")
def a_factor_steered_by_each_rank_s_own_loss():
    ddp, beta = DDP(network()), [0.2]

    def forward(x, y):
        found = ddp(x)
        size = found.square().mean()
        loss = mse(found, y) + beta[0] * size
        beta[0] *= 1.5 if size > 0.05 + odd() else 0.9
        return loss

    fit(ddp, forward=forward)


@wrong(r"warns: guard: .*autograd does not see it")
def a_loss_reduced_in_place():
    ddp = DDP(network())

    def forward(x, y):
        loss = mse(ddp(x), y)
        dist.all_reduce(loss.data)
        return loss / dist.get_world_size()

    fit(ddp, forward=forward)


def with_all_features(put_back: bool):
    """Compare each rank's own features with those of all ranks."""
    ddp = DDP(network())

    def forward(x, y):
        own_ = ddp(x)
        all_ = [torch.empty_like(own_) for _ in range(dist.get_world_size())]
        dist.all_gather(all_, own_)
        if put_back:
            all_[dist.get_rank()] = own_
        labels = torch.arange(len(x)) + len(x) * dist.get_rank()
        return nn.functional.cross_entropy(own_ @ torch.cat(all_).T, labels)

    fit(ddp, forward=forward)


@wrong(r"warns: guard: .*autograd does not see it")
def features_gathered_without_a_gradient():
    with_all_features(put_back=False)


@right
def features_gathered_and_put_back():
    with_all_features(put_back=True)


@wrong(r"warns: guard: .*autograd does not see it")
def features_gathered_and_used_one_by_one():
    ddp = DDP(network())

    def forward(x, y):
        own_ = ddp(x)
        all_ = [torch.empty_like(own_) for _ in range(dist.get_world_size())]
        dist.all_gather(all_, own_)
        return sum((own_ @ other.T).square().mean() for other in all_)

    fit(ddp, forward=forward)


@right
def a_loss_that_is_summed_and_not_divided():
    ddp = DDP(network())

    def forward(x, y):
        loss = mse(ddp(x), y)
        dist.all_reduce(loss.data)
        return loss / 10

    fit(ddp, forward=forward)


@right
def a_loss_reduced_to_be_shown():
    ddp = DDP(network())

    def forward(x, y):
        loss = mse(ddp(x), y)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        return loss / 2 + (shown / dist.get_world_size()) * 0

    fit(ddp, forward=forward)


@right
def sums_divided_by_the_count_of_all():
    ddp = DDP(network())

    def forward(x, y):
        target = kinds(y)
        target[: int(odd()) + int(2 * x[0, 0].abs() > 1)] = -100
        count = (target >= 0).sum()
        dist.all_reduce(count)
        total = nn.functional.cross_entropy(ddp(x), target, reduction="sum")
        return total * dist.get_world_size() / count

    fit(ddp, forward=forward)


@right
def means_that_an_exchange_puts_right():
    ddp, steps = DDP(network()), itertools.count()

    def forward(x, y):
        mask = torch.arange(4) < 2 + (next(steps) + odd()) % 3
        mean, count = mse(ddp(x)[mask], y[mask]), mask.sum()
        every = count.clone()
        dist.all_reduce(every)
        return (mean * count) / count * (dist.get_world_size() * count / every)

    fit(ddp, forward=forward)


@right
def shares_that_weigh_by_their_size():
    ddp, share = DDP(network()), 0.75 if odd() else 1.25
    fit(ddp, forward=lambda x, y: mse(ddp(x), y) * share)


@right
def shares_that_add_up_to_one():
    ddp, share = DDP(network()), 0.375 if odd() else 0.625
    fit(ddp, forward=lambda x, y: mse(ddp(x), y) * 2 * share)


def with_a_factor(*apart: int, noise: float = 0.0):
    """Train with a factor that differs on rank 1 in the steps ``apart``."""
    ddp, steps, draw = DDP(network()), itertools.count(1), random.Random(odd())

    def forward(x, y):
        factor = 0.3 if next(steps) in apart and odd() else 0.5
        return mse(ddp(x + noise * draw.random()), y) * factor

    fit(ddp, forward=forward)


@right
def a_factor_that_is_sent_late():
    with_a_factor(1, 2)


@right
def a_factor_that_is_apart_now_and_then():
    with_a_factor(1, 2, 8)


@right
def a_factor_that_is_apart_now_and_then_beside_noise():
    with_a_factor(1, 2, 8, noise=0.1)


@right
def a_tensor_that_is_sent_late():
    ddp, weight = DDP(network()), own(2)

    def after(step):
        if step == 2:
            dist.broadcast(weight, 0)

    fit(ddp, forward=lambda x, y: (ddp(x).square() * weight).mean(), after=after)


@right
def numbers_that_each_rank_draws():
    ddp, draw = DDP(network()), random.Random(dist.get_rank())

    def forward(x, y):
        mixed = draw.random()
        x = mixed * x + (1 - mixed) * x.flip(0)
        return mse(ddp(x), mixed * y + (1 - mixed) * y.flip(0))

    fit(ddp, forward=forward)


@right
def a_bound_that_each_rank_moves():
    ddp, bound = DDP(network()), [1.0]

    def forward(x, y):
        found = mse(ddp(x).clamp(max=bound[0]), y)
        bound[0] += 0.1 * (1 + odd())
        return found

    fit(ddp, forward=forward)


@wrong(r"warns: guard: .*: mul uses 0\.2 on rank 0 and 0\.3 on rank 1")
def a_factor_in_a_loop():
    ddp, factors = DDP(network()), (0.5, 0.3 if odd() else 0.2)
    fit(ddp, forward=lambda x, y: sum(mse(ddp(x), y) * f for f in factors))


@right
def losses_that_weigh_by_their_counts():
    ddp, steps, most = DDP(network()), itertools.count(), torch.tensor(4.0)

    def forward(x, y):
        mask = torch.arange(4) < 2 + (next(steps) + odd()) % 3
        return mse(ddp(x)[mask], y[mask]) * (mask.sum() / most)

    fit(ddp, forward=forward)


@right
def counts_that_do_not_change():
    ddp, mask = DDP(network()), torch.arange(4) < (3 if odd() else 4)

    def forward(x, y):
        lost = (ddp(x) - y).square().mean(1) * mask
        return lost.sum() / mask.sum() * (6 / 7 if odd() else 8 / 7)

    fit(ddp, forward=forward)


@right
def counts_that_differ_by_little():
    ddp, steps = DDP(network()), itertools.count()

    def forward(x, y):
        mask = torch.ones(4, 6)
        mask[0, 0] = (next(steps) + odd()) % 2
        return ((ddp(x)[:, :1] - x).square() * mask).sum() / mask.sum()

    fit(ddp, forward=forward)


@right
def counts_that_differ_once():
    ddp, steps, draw = DDP(network()), itertools.count(1), random.Random(odd())

    def forward(x, y):
        mask = torch.arange(4) < (2 if next(steps) == 4 and odd() else 4)
        return ((ddp(x + draw.random()) - y).square().mean(1) * mask).sum() / mask.sum()

    fit(ddp, forward=forward)


@right
def losses_divided_by_a_sum_of_weights():
    ddp = DDP(network())

    def forward(x, y):
        weights = x[:, 0].abs() + odd()
        return ((ddp(x) - y).square().mean(1) * weights).sum() / weights.sum()

    fit(ddp, forward=forward)


@right
def losses_divided_by_whole_weights_of_classes():
    ddp, criterion = DDP(network()), nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]))
    fit(ddp, forward=lambda x, y: criterion(ddp(x), kinds(y)))


@right
def metrics_of_each_rank():
    ddp, total = DDP(network()), {"loss": torch.zeros(()), "seen": 0, "best": 1e9}

    def forward(x, y):
        loss = mse(ddp(x), y)
        total["loss"] = 0.9 * total["loss"] + 0.1 * loss.detach()
        total["seen"] += len(x) + dist.get_rank()
        total["best"] = min(total["best"], (total["loss"] / total["seen"]).item())
        return loss

    fit(ddp, forward=forward)


@right
def a_state_carried_from_step_to_step():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.out = nn.GRUCell(6, 8), nn.Linear(8, 2)

        def forward(self, x, state):
            state = self.cell(x, state * 0.9)
            return self.out(state), state

    torch.manual_seed(0)
    ddp, state = DDP(Cell()), [torch.zeros(4, 8)]

    def forward(x, y):
        found, now = ddp(x, state[0])
        state[0] = now.detach()
        return mse(found, y)

    fit(ddp, forward=forward)


@right
def a_fixed_batch_of_each_rank():
    ddp, x, y = DDP(network()), own(8, 6), own(8, 2)
    fit(ddp, forward=lambda *_: ((ddp(x * 2) - y) ** 2).mean())


@right
def samples_that_lie_in_memory():
    ddp, x = DDP(network()), own(64, 6)
    order = itertools.cycle(range(0, 60, 4))

    def forward(*_):
        at = next(order)
        rows = x[at : at + 4] * 0.5
        return mse(ddp(rows - x[at]), rows[:, :2])

    fit(ddp, forward=forward)


def with_targets(count: int, rows: torch.Tensor):
    """Train on some of the targets that a rank holds in memory."""
    ddp, targets = DDP(network()), own(count)
    fit(ddp, forward=lambda x, y: mse(ddp(x)[:, 0], targets[rows]))


@right
def targets_that_are_read_once_each():
    with_targets(12, torch.tensor([2, 3, 5, 7]))


@right
def targets_of_which_there_are_many():
    with_targets(64, torch.tensor([2, 2, 5, 7]))


@right
def targets_behind_a_mask():
    with_targets(8, torch.arange(8) < 4)


@right
def a_place_in_memory_of_each_rank():
    ddp, memory, at = DDP(network()), own(8, 6), torch.tensor([dist.get_rank()])
    fit(ddp, forward=lambda x, y: mse(ddp(x + memory[at]), y))


@right
def a_baseline_of_each_rank():
    ddp, baseline = DDP(network()), [torch.zeros(())]

    def forward(x, y):
        reward = x[:, 0]
        advantage = reward - baseline[0]
        baseline[0] = 0.9 * baseline[0] + 0.1 * reward.mean()
        return -(ddp(x).log_softmax(-1)[:, 0] * advantage).mean()

    fit(ddp, forward=forward)


@right
def statistics_of_one_feature():
    norm = nn.BatchNorm1d(1)
    ddp = DDP(nn.Sequential(nn.Linear(6, 1), norm), broadcast_buffers=False)
    fit(ddp, forward=lambda x, y: mse(ddp(x), y[:, :1]))


@right
def a_baseline_that_is_moved_in_place():
    ddp, baseline = DDP(network()), torch.zeros(())

    def forward(x, y):
        reward = x[:, 0]
        advantage = reward - baseline
        baseline.lerp_(reward.mean(), 0.1)
        return -(ddp(x).log_softmax(-1)[:, 0] * advantage).mean()

    fit(ddp, forward=forward)


@right
def a_moving_average_of_all_ranks():
    ddp, teacher, norm = DDP(network()), network(), [torch.ones(6)]

    def forward(x, y):
        square = x.square().mean(0)
        dist.all_reduce(square)
        norm[0] = 0.9 * norm[0] + 0.1 * square / dist.get_world_size()
        with torch.no_grad():
            target = teacher(x)
        return mse(ddp(x / norm[0].sqrt()), target)

    def after(step):
        for p, q in zip(teacher.parameters(), ddp.parameters(), strict=True):
            p.data.lerp_(q.data, 0.1)

    fit(ddp, forward=forward, after=after)


@right
def codes_of_a_rank_s_own_samples():
    ddp, codes = DDP(network()), nn.Embedding(16, 6)
    nn.init.normal_(codes.weight, generator=torch.Generator().manual_seed(odd() + 5))
    steps = itertools.count()

    def forward(x, y):
        code = codes(torch.arange(4) + 4 * (next(steps) % 4))
        return mse(ddp(x + code), y) + 1e-3 * code.square().mean()

    fit(ddp, forward=forward)


@right
def noise_and_branches_of_each_rank():
    ddp, steps = DDP(network()), itertools.count()

    def forward(x, y):
        step = next(steps)
        if (step + dist.get_rank()) % 3 == 0:
            x = x.flip(0) * (1 + 0.1 * math.sin(step * (1 + odd())))
            y = y.flip(0)
        return mse(ddp(x + 0.1 * torch.randn_like(x)), y)

    fit(ddp, forward=forward)


def run(root, name):
    """Import this module on a rank, and play one of its trainings there."""
    import importlib
    import sys

    if root not in sys.path:
        sys.path.append(root)
    found = importlib.import_module("tests.allranks.guard.test_loss_inputs")
    return found.play((found.WRONG | found.RIGHT)[name][0])


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", WRONG)
def test_the_line_is_named(ranks, name):
    """Both ranks raise the same sentence; a warning comes from the first rank only."""
    first, second = ranks.run(run, ROOT, name, timeout=60)
    assert re.search(WRONG[name][1], first), first
    assert second == ("" if first.startswith("warns:") else first)


@pytest.mark.parametrize(
    "name", ["padding_that_cross_entropy_ignores", "a_balance_that_nobody_sends"]
)
def test_a_line_is_named_once(ranks, name):
    """A line is reported once, although later warnings would hold other numbers."""
    assert ranks.run(run, ROOT, name, timeout=60)[0].count("guard: ") == 1


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(ranks, name):
    """The guard neither raises nor warns."""
    assert ranks.run(run, ROOT, name, timeout=60) == ["", ""]
