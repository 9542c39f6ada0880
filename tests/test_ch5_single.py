"""Chapter 5's single process works; other tests compare its losses with the ranks'."""

import re

import pytest
import torch

from scripts import ch5_single

LINE = r"epoch={} loss=\d+\.\d{{4}} accuracy=\d\.\d{{4}} \d+ samples/s"


def test_runs_without_a_launcher(capsys):
    """It trains without a group, and prints one line per epoch."""
    args = ch5_single.parse_args(["--epochs=2", "--samples=64"])
    ch5_single.train(args, torch.device("cpu"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for epoch, line in enumerate(lines):
        assert re.fullmatch(LINE.format(epoch), line)


def test_the_task_has_no_test_sample_to_train_on():
    """All 1440 + 357 samples differ, and --samples shortens only the first part."""
    train_set, test_set, net = ch5_single.make_task(1440)
    assert (len(train_set), len(test_set)) == (1440, 357)
    images = torch.cat([train_set.tensors[0], test_set.tensors[0]]).flatten(1)
    assert len(images.unique(dim=0)) == 1797
    assert sum(p.numel() for p in net.parameters()) == 158_538
    few, same_test_set, _ = ch5_single.make_task(5)
    assert torch.equal(few.tensors[0], train_set.tensors[0][:5])
    assert torch.equal(same_test_set.tensors[0], test_set.tensors[0])


@pytest.mark.parametrize("flags", ["--epochs=0", "--batch-size=-1", "--lr=nan"])
def test_refuses_impossible_numbers(flags):
    """A bad value is refused in one sentence that names it."""
    with pytest.raises(
        SystemExit, match=r" (0|-1|nan): must be (1 to \d+|1e-30 to 1e\+30)$"
    ):
        ch5_single.parse_args([flags])
