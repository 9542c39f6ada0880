"""Chapter 3's lesson: each wrong line fails as the page says, and right ones work."""

import math
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp

from allranks import Ranks, vgpu
from scripts import ch3_save_load as lesson

LOADS = "load_as_it_is", "load_not_strict", "load_weights", "load_all"


@pytest.fixture(scope="module")
def trained():
    """Return a function that trains for some steps, and returns net and optimizer."""

    def run(num_steps=20):
        torch.manual_seed(1)
        net, optimizer = lesson.make()
        lesson.train(net, optimizer, num_steps)
        return net, optimizer

    return run


@pytest.fixture
def path(trained, tmp_path):
    """Return the path of a checkpoint from step 20, with a wrapper's key names."""
    lesson.save(str(tmp_path / "x.pt"), lesson.pack(*trained(), 20))
    return str(tmp_path / "x.pt")


def test_its_lines_say_what_the_page_says(tmp_path, monkeypatch, capsys):
    """Each attempt ends as it must, and one file is left."""
    monkeypatch.chdir(tmp_path)
    lesson.main([])
    first, *lines = capsys.readouterr().out.splitlines()
    said = dict(line.split(": ", 1) for line in lines)
    keys = "module.0.weight, module.0.bias, module.2.weight, module.2.bias"
    assert first == f"saved after step 100: {keys}"
    losses = {n: [float(x) for x in said[n].split(",")[0].split()] for n in LOADS[1:]}
    whole = [float(x) for x in said["never stopped"].split()]
    assert said["load_as_it_is"].startswith("RuntimeError: ")
    assert 'Missing key(s) in state_dict: "0.weight"' in said["load_as_it_is"]
    assert said["load_not_strict"].endswith(" 4 tensors missing")
    assert losses["load_not_strict"][0] > math.log(10) - 0.1 > 10 * whole[0]
    assert losses["load_weights"][0] == whole[0] < losses["load_weights"][1] - 1
    assert said["load_all"] == f"{said['never stopped']}, 0 tensors missing"
    assert [file.name for file in tmp_path.iterdir()] == ["ch3_save_load.pt"]
    state = lesson.read(str(tmp_path / "ch3_save_load.pt"))
    assert (list(state), state["step"]) == (["model", "optim", "step"], 100)


@pytest.mark.parametrize("stop", [1, 30])
def test_weights_and_optimizer_go_on_to_the_bit(stop, trained, tmp_path):
    """From any step the losses are those of the training that never stopped."""
    net, optimizer = trained(stop)
    path = str(tmp_path / "x.pt")
    lesson.save(path, lesson.pack(net, optimizer, stop))
    torch.manual_seed(stop)  # so that the new net begins with other weights
    other, fresh = lesson.make()
    lesson.load_all(other, fresh, lesson.read(path))
    whole = lesson.train(net, optimizer, 5)
    assert lesson.train(other, fresh, 5) == whole
    assert lesson.train(*lesson.make(), 5)[0] != whole[0], "nothing was learned"


@pytest.mark.parametrize("seed", range(5))
def test_a_new_adam_moves_by_the_rate_and_only_a_high_rate_shows_it(seed):
    """The loss jumps at the script's rate of 0.05 and not at 0.01."""
    for rate, jumps in (0.05, True), (0.01, False):
        torch.manual_seed(seed)
        net, adam = lesson.make()
        adam.param_groups[0]["lr"] = rate
        lesson.train(net, adam, 100)
        new = torch.optim.Adam(net.parameters(), rate)
        before = nn.utils.parameters_to_vector(net.parameters())
        first = lesson.train(net, new, 1)[0]
        moved = nn.utils.parameters_to_vector(net.parameters()) - before
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        has = grads.abs() > 1e-6  # Adam divides by a gradient's size plus 1e-8
        assert 0 < (grads == 0).sum() < len(grads) / 2  # those of units that are off
        assert not moved[grads == 0].any()
        full = torch.full_like(moved[has], rate)
        torch.testing.assert_close(moved[has].abs(), full, rtol=0.01, atol=0)
        second = lesson.train(net, new, 1)[0]
        assert second > 10 * first if jumps else second < first


def test_without_strict_no_tensor_changes(path):
    """With strict=False no tensor is loaded: all names are unexpected or missing."""
    net, optimizer = lesson.make()
    before = [p.clone() for p in net.parameters()]
    answer = lesson.load_not_strict(net, optimizer, lesson.read(path))
    assert all(map(torch.equal, before, net.parameters()))
    assert answer.missing_keys == list(net.state_dict())
    assert answer.unexpected_keys == [f"module.{key}" for key in net.state_dict()]


def test_the_comment_has_the_right_line(trained, path):
    """Saving the module inside the wrapper gives names that load as they are."""
    source = Path(lesson.__file__).read_text()
    wrong, right = "wrapped.state_dict()", "wrapped.module.state_dict()"
    assert f"model = {wrong}  # right: {right}\n" in source
    state = {"model": nn.DataParallel(trained()[0]).module.state_dict()}
    other, fresh = lesson.make()
    answer = lesson.load_as_it_is(other, fresh, state)
    assert answer.missing_keys == answer.unexpected_keys == []
    with pytest.raises(RuntimeError, match=r"Missing key.*\n.*Unexpected key.*module"):
        lesson.load_as_it_is(other, fresh, lesson.read(path))


def test_what_a_gpu_saved_loads_where_it_is_missing(tmp_path):
    """The file names a device that is missing, so read() maps it to the CPU."""
    path = str(tmp_path / "gpu.pt")
    with vgpu.plugged_in(1):
        net, optimizer = lesson.make()
        lesson.train(net, optimizer, 2)
        lesson.save(path, lesson.pack(net, optimizer, 2))
        whole = lesson.train(net, optimizer, 3)
    assert next(net.parameters()).device.type == "vgpu"
    with pytest.raises(RuntimeError, match="deserialize object on a VGPU device"):
        torch.load(path)
    state = lesson.read(path)
    assert {t.device.type for t in state["model"].values()} == {"cpu"}
    net, optimizer = lesson.make()
    lesson.load_all(net, optimizer, state)
    assert lesson.train(net, optimizer, 3) == pytest.approx(whole, rel=1e-5)


class Hostile:
    """An object whose pickle creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_read_runs_no_code(tmp_path):
    """read() refuses a file that would run code if it were loaded as a whole."""
    path = str(tmp_path / "hostile.pt")
    torch.save({"model": {}, "note": Hostile(tmp_path / "ran")}, path)
    with pytest.raises(UnpicklingError, match="Weights only load failed"):
        lesson.read(path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


def test_saving_in_the_background_needs_a_group_of_the_cpu(tmp_path):
    """Without a CPU backend, as with NCCL alone, it is refused with the remedy."""
    dist.init_process_group("cuda:gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(AssertionError, match="'cpu:gloo,cuda:nccl'"):
            dcp.async_save({"x": torch.ones(2)}, checkpoint_id=tmp_path)
    finally:
        dist.destroy_process_group()


def save_zero_load(folder):
    """Save a sharded net, empty it, load it; return weights before and after."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = fully_shard(nn.Linear(5, 3))
    before = net.weight.full_tensor().clone()
    dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder)
    with torch.no_grad():
        net.weight.zero_()
    emptied = net.weight.full_tensor().clone()
    state = {"model": get_model_state_dict(net)}
    dcp.load(state, checkpoint_id=folder)
    return before, emptied, net.weight.full_tensor()


def test_a_distributed_checkpoint_is_in_the_net_once_it_is_loaded(tmp_path):
    """Nobody calls load_state_dict: the state's tensors are the net's own memory."""
    with Ranks(2) as ranks:
        for before, emptied, after in ranks.run(save_zero_load, str(tmp_path)):
            assert not emptied.any() and before.any()
            assert torch.equal(before, after)
