"""An observer checks a program that does not call the guard, and leaves it alone."""

import pytest

from allranks import Ranks
from allranks.guard.exchange import SAME_NUMBERS


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


def observed(case: str) -> tuple[list[str], list[str], int, int]:
    """Train a small model in DDP under an observer.

    Returns:
        Kinds and texts of what it raised, the steps it counted, and the hooks that the
        optimizers have while it is there.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    from allranks.guard import GuardError
    from allranks.guard.observer import Observer

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    model = nn.parallel.DistributedDataParallel(net)
    torch.manual_seed(0 if case == "same numbers" else rank)
    halves = [net[0].parameters(), net[2].parameters()]
    optimizers = [torch.optim.SGD(half, 0.01) for half in halves]
    watch = Observer(model, optimizers, skip=("data",), patience_s=60)
    kinds, texts = [], []
    for step in range(4):
        model.zero_grad()
        inputs = torch.ones(2, 4) * (rank + 1)
        model(inputs).square().sum().backward()
        if case != "late":
            watch.after_backward()
        net[0].weight.grad.mul_(3)  # the program's own affair
        if case == "edited" and rank == 1 and step == 1:
            net[2].bias.data[0] += 1
        for optimizer in optimizers:
            try:
                watch.before_step(optimizer)
            except GuardError as error:
                kinds.append(error.kind)
                texts.append(str(error))
                watch.allow_same_numbers()
            optimizer.step()
    hooks = sum(len(o._optimizer_step_pre_hooks) for o in optimizers)
    steps = watch.steps
    watch.remove()
    assert not model._forward_pre_hooks
    return kinds, texts, steps, hooks


def test_gradients_are_judged_as_backward_leaves_them(ranks):
    """What the program does to them before it steps is its own affair."""
    assert ranks.run(observed, "healthy") == [([], [], 4, 0)] * 2
    for kinds, texts, _, _ in ranks.run(observed, "late"):
        assert set(kinds) == {""}
        assert all("gradient of module.0.weight" in text for text in texts)


def test_two_optimizers_make_one_step_and_get_no_hook(ranks):
    """An edited weight is found once, before the first of them steps."""
    for kinds, texts, steps, hooks in ranks.run(observed, "edited"):
        assert (kinds[0], steps, hooks) == ("", 4, 0)
        assert texts[0].startswith("step 2: the parameter module.2.bias")


def test_equal_random_numbers_can_be_allowed(ranks):
    """Nobody looks for them again, and all that remains is compared."""
    for kinds, texts, _, _ in ranks.run(observed, "same numbers"):
        assert kinds == [SAME_NUMBERS]
        assert texts[0].startswith("step 1: ranks 0, 1 draw the same random numbers")
