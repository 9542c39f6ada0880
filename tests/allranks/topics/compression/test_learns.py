"""What the figure says of steps that teach less is what ch8's scripts do."""

from itertools import pairwise

import pytest

from allranks import Ranks
from allranks.topics.compression.sums import LEARNS

LOSS, SEEDS = 0.2, range(5)
START = """
from argparse import Namespace
from torch import nn
from scripts import ch8_compress, ch8_local_sgd, ch8_powersgd
from scripts.tasks import make_task

HOOKS = {
    "none": ch8_compress.Hook,
    "bf16": lambda: ch8_compress.Cast(torch.bfloat16),
    "topk": lambda: ch8_compress.TopK(0.01, True),
    "powersgd": lambda: ch8_powersgd.PowerSGD(2),
}

def losses(name, seed, steps=120):
    # The loss on other digits after every 5 steps.
    torch.set_num_threads(1)
    args = Namespace(steps=steps, every=5, seed=seed)
    if name == "local":
        return local(args)
    curve = ch8_compress.train(HOOKS[name](), args, rank, "cpu")
    return [loss for _, _, loss in curve]

def local(args, inner_steps=20):
    torch.manual_seed(args.seed)
    train_set, test_set, net = make_task(1440)
    outer, curve = ch8_local_sgd.Outer(net, 1, 0), []
    optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
    torch.manual_seed(args.seed + rank)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        x, y = train_set[torch.randint(1440, (32,))]
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % inner_steps == 0:
            outer.step()
        if step % args.every == 0:
            with torch.no_grad():
                loss = nn.functional.cross_entropy(net(test_set[:][0]), test_set[:][1])
            dist.all_reduce(loss, dist.ReduceOp.AVG)
            curve.append(loss.item())
    return curve
"""


def steps_to(loss: float, curve: list[float]) -> float:
    """Return after how many steps a curve, which begins at 2.3, comes below a loss."""
    for i, (high, low) in enumerate(pairwise([2.3, *curve])):
        if low < loss:
            return 5 * (i + (high - loss) / (high - low))
    raise AssertionError(f"never below {loss}: {curve}")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ch8s_network_needs_as_many_more_steps():
    """To a loss of 0.2, on two ranks; rounded to a tenth."""
    found = {}
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        for name in LEARNS:
            found[name] = []
            for seed in SEEDS:
                call = f"losses({name!r}, {seed})"
                curve = ranks.run(call, timeout=400, quiet=True)[0]
                found[name].append(steps_to(LOSS, curve))
    # Each seed is compared with itself: it gives all ways the same weights and samples.
    means = {
        name: sum(a / b for a, b in zip(steps, found["none"], strict=True)) / len(SEEDS)
        for name, steps in found.items()
    }
    assert means == pytest.approx({k: v[2] for k, v in LEARNS.items()}, abs=0.1)
