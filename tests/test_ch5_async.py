"""Synchronous and asynchronous training: order, staleness, and how far each gets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn

from allranks import Ranks, RanksError
from scripts import ch5_async
from tests.ranks import run_script


@pytest.fixture(scope="module")
def ranks():
    """Yield four live ranks: a server and three workers."""
    with Ranks(4) as ranks:
        yield ranks


def run_train(way, periods, num, lr):
    """Train one way on a live rank; return the log and the weights."""
    import torch
    import torch.distributed as dist

    from scripts import ch5_async

    trainer = ch5_async.Trainer(torch.device("cpu"), lr)
    log = getattr(ch5_async, way)(trainer, dist.get_rank(), periods, num)
    return log, trainer.weights


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 60),
)
@settings(max_examples=50, deadline=None)
def test_gradients_come_when_their_workers_are_done(periods, num):
    """Gradients come in order of time, one each time a worker's period is over."""
    found = ch5_async.deliveries(periods, num)
    assert len(found) == num
    assert found == sorted(found)
    last = found[-1][0]
    for worker, period in enumerate(periods, 1):
        own = [tick for tick, who in found if who == worker]
        assert own == [period * n for n in range(1, len(own) + 1)]
        assert (len(own) + 1) * period >= last


def test_a_second_run_gives_the_same_numbers(ranks):
    """Two runs agree bit for bit, though the workers compute at the same time."""
    first, second = (
        ranks.run(run_train, "train_async", [1, 2, 3], 30, 0.2)[0][0] for _ in "ab"
    )
    assert first == second


def test_sync_steps_are_those_of_one_process(ranks):
    """The mean of three gradients is the gradient of the three batches together."""
    log, weights = ranks.run(run_train, "train_sync", [1, 1, 1], 30, 0.2)[0]
    with Ranks(1) as alone:
        ((_, one),) = alone.run(run_alone, 10)
    assert [entry[1] for entry in log] == list(range(3, 31, 3))
    torch.testing.assert_close(weights, one, rtol=0, atol=1e-10)


def run_alone(num):
    """Train one process on the workers' batches put together."""
    import torch

    from scripts import ch5_async

    trainer = ch5_async.Trainer(torch.device("cpu"), 0.2)
    draws = [torch.Generator().manual_seed(worker) for worker in (1, 2, 3)]
    for _ in range(num):
        batches = [torch.randint(1797, (32,), generator=draw) for draw in draws]
        loss = trainer.loss(torch.cat(batches))
        grads = torch.autograd.grad(loss, [*trainer.net.parameters()])
        trainer.weights -= 0.2 * torch.nn.utils.parameters_to_vector(grads)
    return None, trainer.weights


@pytest.mark.parametrize(("periods", "oldest"), [([1, 1, 1], 2), ([1, 1, 4], 8)])
def test_staleness_is_what_the_others_did_meanwhile(ranks, periods, oldest):
    """A gradient is as stale as the number of steps that others made meanwhile.

    With equal workers that is two; for a slow one, four steps of two fast workers.
    """
    log = ranks.run(run_train, "train_async", periods, 60, 0.2)[0][0]
    assert max(staleness for _, _, staleness, _ in log) == oldest
    sync = ranks.run(run_train, "train_sync", periods, 60, 0.2)[0][0]
    assert {staleness for _, _, staleness, _ in sync} == {0}


def test_the_page_s_story(ranks):
    """Asynchronous wins with small steps or a slow rank, and fails with large steps."""
    last = {}
    for lr in 0.2, 0.7:
        for way in "train_sync", "train_async":
            last[way, lr] = ranks.run(run_train, way, [1, 1, 1], 240, lr)[0][0][-1][3]
    assert last["train_async", 0.2] < 0.5 * last["train_sync", 0.2]
    assert last["train_sync", 0.7] < 0.3
    assert last["train_async", 0.7] > 1
    ticks = [
        ranks.run(run_train, way, [1, 1, 4], 240, 0.2)[0][0][-1][0]
        for way in ("train_sync", "train_async")
    ]
    assert ticks[0] == 320
    assert ticks[1] < ticks[0] / 2


def train_one_after_another(seed: int, lr: float, stale: bool) -> float:
    """Take 240 steps, each with one of three workers' gradients; return the loss.

    A stale one is of the weights as they were when this worker delivered its last.
    """
    x, y = map(torch.as_tensor, load_digits(return_X_y=True))
    x = (x / 16).float()
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    params = list(net.parameters())
    known = [[p.detach().clone() for p in params] for _ in range(3)]
    for step in range(240):
        now = [p.detach().clone() for p in params]
        batch = torch.randint(len(x), (32,))
        with torch.no_grad():
            for p, old in zip(params, known[step % 3] if stale else now, strict=True):
                p.copy_(old)
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, current, grad in zip(params, now, grads, strict=True):
                p.copy_(current - lr * grad)
        known[step % 3] = [p.detach().clone() for p in params]
    return nn.functional.cross_entropy(net(x), y).item()


@pytest.mark.parametrize("seed", range(5))
def test_it_is_staleness_that_makes_the_large_rate_fail(seed):
    """The page names the cause: the same steps with fresh gradients train."""
    assert train_one_after_another(seed, 0.7, stale=True) > 1
    assert train_one_after_another(seed, 0.7, stale=False) < 0.4
    assert train_one_after_another(seed, 0.2, stale=True) < 0.4


@pytest.mark.parametrize("flags", [["--gradients=0"], ["--lr=nan"], ["--slowest=-1"]])
def test_bad_flags_get_one_sentence(flags):
    with pytest.raises(SystemExit, match=r"must be (?:1 to|1e-30 to)"):
        ch5_async.parse_args(flags)


def test_a_server_alone_is_refused():
    """One rank gets a sentence, instead of a hang."""
    with pytest.raises(RanksError, match="rank 0 serves, each other needs one"):
        run_script("ch5_async", 1)
