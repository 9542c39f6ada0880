"""Chapter 6's stages with send and recv train what one process would."""

import pytest
import torch

from allranks import Ranks
from scripts import ch6_by_hand

# 3 steps per epoch, and the last batch has 4 samples.
FLAGS = ["--epochs=2", "--samples=14", "--batch-size=5"]


@pytest.fixture(scope="module")
def crews():
    """Yield groups of one, two and four live ranks."""
    crews = {world_size: Ranks(world_size) for world_size in (1, 2, 4)}
    yield crews
    for ranks in crews.values():
        ranks.close()


def run_train(script, flags):
    """Run a script's train() on a live rank; return losses, gradients and weights."""
    import importlib

    import torch
    import torch.distributed as dist
    from torch.utils.data import TensorDataset

    torch.set_default_dtype(torch.float64)
    module = importlib.import_module(f"scripts.{script}")
    make_task, nets = module.make_task, []

    def keep(num):
        train_set, test_set, net = make_task(num)
        nets.append(net)
        return train_set, TensorDataset(*test_set[:1]), net

    module.make_task = keep
    try:
        args = module.parse_args(flags)
        place = (torch.device("cpu"),)
        if script == "ch6_by_hand":
            place = dist.get_rank(), dist.get_world_size(), *place
        losses = torch.stack(module.train(args, *place))
    finally:
        module.make_task = make_task
    own = [(p.grad, p.detach()) for p in nets[0].parameters()]
    return losses, own


@pytest.fixture(scope="module")
def whole(crews):
    """Return chapter 5's training: the same in one process, unsplit."""
    ((losses, own),) = crews[1].run(run_train, "ch5_single", FLAGS, quiet=True)
    assert len(losses) == 6
    return losses, own


@pytest.mark.parametrize("world_size, num", [(1, 3), (2, 1), (2, 4), (4, 4)])
def test_stages_train_the_unsplit_net(world_size, num, crews, whole):
    """Losses, last gradients and weights agree, also for batches that don't divide."""
    flags = [*FLAGS, f"--microbatches={num}"]
    by_rank = crews[world_size].run(run_train, "ch6_by_hand", flags, quiet=True)
    torch.testing.assert_close(by_rank[-1][0], whole[0], rtol=0, atol=1e-10)
    for i, expected in enumerate(whole[1]):
        holders = [own[i] for _, own in by_rank if own[i][0] is not None]
        assert len(holders) == 1, "each layer is trained on exactly one rank"
        for found, right in zip(holders[0], expected, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=1e-10)


def test_more_ranks_than_parameters_can_fill(crews):
    """A stage may hold no parameter at all, and training still works."""
    with Ranks(5) as ranks:
        losses = ranks.run(run_train, "ch6_by_hand", ["--epochs=1", "--samples=8"])[-1]
        assert losses[0].isfinite().all()


@pytest.mark.parametrize("flag", ["--microbatches=0", "--epochs=-1", "--lr=inf"])
def test_refuses_impossible_numbers(flag):
    with pytest.raises(
        SystemExit, match=r" (0|-1|inf): must be (1 to 65536|1e-30 to 1e\+30)$"
    ):
        ch6_by_hand.parse_args([flag])


def test_refuses_more_ranks_than_layers():
    args = ch6_by_hand.parse_args(["--samples=8"])
    with pytest.raises(SystemExit, match=r"^10 ranks > 9 layers$"):
        ch6_by_hand.train(args, 0, 10, torch.device("cpu"))
