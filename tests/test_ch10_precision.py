"""Chapter 10's script: all ranks get the mean of what they hold."""

import pytest
import torch

from allranks import launch
from scripts import ch10_precision


def test_each_rank_gets_what_one_process_would_compute():
    """The mean over ranks is the mean of their tensors, stacked."""
    run = launch("ch10_precision", 2, "--numbers", "4")
    held = torch.stack([torch.arange(4.0), torch.arange(4.0) + 1])  # (W, 4)
    mean = held.mean(dim=0).tolist()
    for rank in range(2):
        said = f"{held[rank].tolist()} here, {mean} on average"
        assert run.lines[rank] == [f"[rank {rank}/2] {said}"]


@pytest.mark.parametrize("flag", ["--numbers=0", "--numbers=1001"])
def test_refuses_impossible_numbers(flag):
    """A bad value is refused in one sentence that names it."""
    with pytest.raises(SystemExit, match=r"^--numbers (0|1001): must be 1 to 1000$"):
        ch10_precision.parse_args([flag])
