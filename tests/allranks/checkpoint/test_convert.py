"""A converted file is what the plain model would have saved."""

import pytest
import torch
from torch import nn

from allranks.checkpoint.command import main
from tests.allranks.checkpoint.files import WEIGHT, make_net, packed, rewritten


def test_loads_into_the_plain_model(saved, tmp_path, capsys):
    """A model saved beside its optimizer loads, and its outputs are equal."""
    net = make_net()
    wrapped = torch.compile(nn.DataParallel(net)).state_dict()
    optim = torch.optim.Adam(net.parameters()).state_dict()
    path = saved({"optim": optim, "model": wrapped, "rng": torch.get_rng_state()})
    main(["convert", str(path), str(tmp_path / "out.pt")])
    assert "not copied: optim, rng" in capsys.readouterr().out
    fresh = make_net()
    fresh.load_state_dict(torch.load(tmp_path / "out.pt"))
    x = torch.rand(4, 2)
    assert torch.equal(fresh.eval()(x), net.eval()(x))


def test_keeps_every_kind_of_entry(saved, tmp_path):
    """It keeps tied, zero-dim, sparse and other tensors, and entries of other types."""
    state = {
        "module.a": WEIGHT,
        "module.tied": WEIGHT,
        "module.view": WEIGHT[1],
        "module.scalar": torch.tensor(2.5),
        "module.empty": torch.empty(0, dtype=torch.bfloat16),
        "module.sparse": torch.eye(2).to_sparse(),
        "module._extra_state": {"scale": 3},
    }
    main(["inspect", str(saved(state))])
    main(["convert", str(saved(state)), str(tmp_path / "out.pt")])
    out = torch.load(tmp_path / "out.pt")
    assert out.pop("_extra_state") == {"scale": 3}
    out["a"][1, 0] = 7
    assert out["tied"][1, 0] == 7, "one memory no more"
    out["a"][1, 0] = 1
    for key, value in out.items():
        old = state[f"module.{key}"]
        assert value.dtype == old.dtype and value.layout == old.layout
        assert torch.equal(value.to_dense(), old.to_dense())


def test_takes_only_the_memory_of_the_model(saved, tmp_path):
    """A part of a larger memory is copied, once, so what was tied stays tied."""
    flat = torch.rand(10**5)
    model = {"a": flat[:5], "tied": flat[:5], "b": flat[5:7], "c": flat[:0]}
    path = saved({"model": model, "optim": {"state": {0: flat}}})
    main(["convert", str(path), str(tmp_path / "out.pt")])
    assert (tmp_path / "out.pt").stat().st_size < 5000 < path.stat().st_size
    out = torch.load(tmp_path / "out.pt")
    assert all(out[key].equal(model[key]) for key in model)
    out["a"][0] = 7
    assert out["tied"][0] == 7


def test_maps_another_machines_gpu_to_the_cpu(tmp_path):
    """A CUDA file, which torch alone can't load here, is brought to the CPU."""
    path = tmp_path / "gpu.pt"
    cpu, gpu = b"\x03\0\0\0cpu", b"\x07\0\0\0cuda:99"
    path.write_bytes(rewritten(packed({"w": WEIGHT}), lambda d: d.replace(cpu, gpu)))
    with pytest.raises(RuntimeError, match=r"deserialize object on .*CUDA device"):
        torch.load(path)
    main(["convert", str(path), str(tmp_path / "out.pt")])
    assert torch.load(tmp_path / "out.pt")["w"].device.type == "cpu"
