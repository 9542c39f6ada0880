"""Each topic on which ranks agree has its noun, its advice and its word in skip=."""

import re

import pytest
import torch
from torch import nn

from allranks import Ranks
from allranks.guard.agreement import Agreement
from allranks.guard.exchange import START, Exchange, GuardError
from allranks.guard.hooks import ForwardHooks, ProgramHooks
from allranks.guard.randomness import Randomness
from allranks.guard.targets import Targets


class Two(Exchange):
    """Two ranks in one process: the other one's texts are known."""

    def __init__(self):
        self.ranks, self.size, self.other = [0, 1], 2, lambda: ""

    def texts(self, text):
        """Return this rank's text, and that of the other rank."""
        return [text, self.other()]


def network():
    """Return a network with a setting and a mode."""
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))


def agreement(change=None, skip=()):
    """Return what one rank compares, after a change."""
    net, hooks = network(), ProgramHooks()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    parts = {"net": net, "sgd": sgd, "scaler": scaler, "hooks": hooks}
    if change:
        change(parts)
    exchange, device = Two(), torch.device("cpu")
    targets = Targets(parts["net"], parts["sgd"], parts["scaler"], (), skip)
    forward = ForwardHooks(targets.model, device, Randomness(exchange, device, True))
    return Agreement(exchange, targets, forward, hooks)


def judged(change, where="step 1", skip=()):
    """Return what a healthy rank says about one that was changed; "" if nothing."""
    first, second = agreement(skip=skip), agreement(change, skip)
    rows = [first.numbers(where), second.numbers(where)]
    for topic, own, other in zip(second.topics, *rows, strict=True):
        if own != other and topic.skip not in skip:  # the first that is judged
            first.exchange.other = topic.text
            break
    try:
        first.judge(where, rows)
    except GuardError as error:
        return str(error)
    return ""


def frozen(parts):
    parts["net"][0].bias.requires_grad_(False)


def longer(parts):
    parts["net"].append(nn.Linear(2, 2))


def other_rate(parts):
    parts["net"][1].p = 0.2


def evaluates(parts):
    parts["net"].eval()


def hooked(parts):
    parts["hooks"].seen.add("the output of 0")


def slower(parts):
    parts["sgd"].param_groups[0]["lr"] = 0.01


def scaled(parts):
    parts["scaler"] = torch.amp.GradScaler("cpu", init_scale=2.0)


TOPICS = [
    (frozen, "the model's parameters are not", r"wrong\)\.$", None),
    (longer, "the model's parameters are not", r"need their own group=\.$", None),
    (other_rate, "the model's modules are not", r"from the same settings", "modes"),
    (evaluates, "the modes are not", r"must call train\(\)", "modes"),
    (hooked, "the hooks are not", r"on every rank, or on none\.$", "gradients"),
    (slower, "the optimizer's settings are not", r"as watch\.mean does", "optimizer"),
    (scaled, "the GradScaler is not", r"or use ShardedGradScaler\.$", None),
]


@pytest.mark.parametrize(("change", "noun", "advice", "skip"), TOPICS)
def test_a_topic_that_differs_is_named_with_its_advice(change, noun, advice, skip):
    """Equal ranks are silent, and so is a topic whose word is in skip=."""
    said = judged(change)
    assert said.startswith(f"step 1: {noun} the same on all ranks: ")
    assert re.search(advice, said)
    assert judged(None) == ""
    if skip:
        assert noun not in judged(change, skip=(skip,))


@pytest.mark.parametrize("change", [evaluates, hooked])
def test_what_may_change_before_the_first_step_is_not_compared_at_the_start(change):
    """A model may be put into training, and hooks be registered, until then."""
    assert judged(change, START) == ""
    assert judged(change) != ""


def test_after_join_the_scale_grew_by_calls():
    """Its advice tells how many steps the ranks made."""
    first, second = agreement(), agreement(scaled)
    first.joined_steps = "Inside of Join the ranks made 3, 4 steps. "
    first.exchange.other = second._scaler
    rows = [first.numbers("after Join"), second.numbers("after Join")]
    with pytest.raises(GuardError, match=r"made 3, 4 steps\. Each called update\(\)"):
        first.judge("after Join", rows)


def test_generators_of_all_are_seen_although_they_are_frozen():
    """A script's ``job`` and live ranks freeze what their imports have made."""
    with Ranks(1) as ranks:
        code = (
            "import gc, random\nimport numpy\n"
            "from allranks.guard.randomness import drawers\n"
            "gc.freeze()\nbefore = drawers()\n{}\n"
            "len(drawers().items() - before.items())"
        )
        for draw in "random.random()", "numpy.random.rand()":
            assert ranks.run(code.format(draw)) == [1]
