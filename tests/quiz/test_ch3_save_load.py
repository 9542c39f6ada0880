"""What backs the quizzes of chapter 3."""

import io
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from allranks import vgpu
from allranks.topics.topology.sums import equal_nodes, rank_of
from tests.quiz.proofs import hang, law


def test_ch3_prefix():
    """Loading keys with a prefix gives this message, and stripping it repairs that."""
    wrapped = nn.DataParallel(nn.Sequential(nn.Linear(2, 1))).state_dict()
    net = nn.Sequential(nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*module\.0\.weight"):
        net.load_state_dict(wrapped)
    consume_prefix_in_state_dict_if_present(wrapped, "module.")
    net.load_state_dict(wrapped)


def test_ch3_strict():
    """With strict=False nothing is loaded, but a wrong shape is still an error."""
    wrapped = nn.DataParallel(nn.Linear(2, 1)).state_dict()
    net = nn.Linear(2, 1)
    before = net.weight.clone()
    answer = net.load_state_dict(wrapped, strict=False)
    assert answer.missing_keys == ["weight", "bias"]
    assert torch.equal(net.weight, before)
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(3, 1).load_state_dict(net.state_dict(), strict=False)


def test_ch3_fresh_adam():
    """The first loss is the same, but the first step moves each weight by the rate."""
    torch.manual_seed(0)
    x, rate = torch.randn(8, 4), 0.1
    net = nn.Linear(4, 1)
    adam = torch.optim.Adam(net.parameters(), lr=rate)

    def step(net, adam, seed):
        noise = torch.randn(8, 1, generator=torch.Generator().manual_seed(seed))
        loss = (net(x) - noise).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()

    for seed in range(300):
        step(net, adam, seed)
    resumed = nn.Linear(4, 1)
    resumed.load_state_dict(net.state_dict())
    fresh, before = torch.optim.Adam(resumed.parameters(), lr=rate), net.weight.clone()
    assert step(net, adam, 300) == step(resumed, fresh, 300)
    assert (net.weight - before).abs().max() < rate / 2
    moved = (resumed.weight - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-2, atol=0)


@law
def test_ch3_next_epoch(last, total):
    done = list(range(last + 1))
    return next(
        s for s in range(total) if done + list(range(s, total)) == [*range(total)]
    )


def test_ch3_who_saves():
    """One rank per machine has local rank 0, but only one of all has rank 0."""
    nodes = equal_nodes(2, 4)
    ranks = [(rank_of(nodes, n, i), i) for n in range(2) for i in range(4)]
    assert sum(local_rank == 0 for _, local_rank in ranks) == 2
    assert sum(rank == 0 for rank, _ in ranks) == 1


def test_ch3_barrier(two, tmp_path):
    """After the barrier all read the new file; inside the if, it hangs rank 0."""

    def save(folder, inside):
        import os
        import time

        path = Path(folder, "checkpoint")
        path.write_text("old")
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(0.2)
            Path(folder, "new").write_text("new")
            os.replace(Path(folder, "new"), path)
            if inside:
                dist.barrier()
        if not inside:
            dist.barrier()
        return path.read_text()

    assert two.run(save, str(tmp_path), False, timeout=30) == ["new", "new"]
    with hang(two, match="rank 1 finished"):
        two.run(save, str(tmp_path), True, timeout=60)


class Trap:
    """An object whose pickle is a call of os.mkdir."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        """Return the call that unpickling makes."""
        return os.mkdir, (self.path,)


def test_ch3_unpickling(tmp_path):
    """The check refuses the call; without it the call runs, map_location or not."""
    file, sign = tmp_path / "model.pt", tmp_path / "ran"
    torch.save(Trap(str(sign)), file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file)
    assert not sign.exists()
    torch.load(file, weights_only=False, map_location="cpu")
    assert sign.exists()


def test_ch3_map_location():
    """A tensor loads onto the device that the file names, not onto the default one."""
    with vgpu.plugged_in(2):
        file = io.BytesIO()
        torch.save(torch.ones(1, device="vgpu:0"), file)
        file.seek(0)
        with torch.device("vgpu:1"):
            assert str(torch.load(file).device) == "vgpu:0"
        file.seek(0)
        assert str(torch.load(file, map_location="cpu").device) == "cpu"
