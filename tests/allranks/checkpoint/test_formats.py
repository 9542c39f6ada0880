"""Each library's files are told by name, and what cannot be a model is not made one."""

import io
import json
import tarfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

from allranks import Ranks
from allranks.checkpoint.command import main
from tests.allranks.checkpoint.files import WEIGHT, make_net, refusal


def shown(capsys, *argv) -> str:
    """Return what a command prints that succeeds."""
    main([str(word) for word in argv])
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.fixture
def folder(tmp_path):
    """Return a function that makes a folder of files with these names."""

    def make(*names: str):
        path = tmp_path / "folder"
        for name in names:
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                file.mkdir()
            elif name.endswith(".safetensors"):
                save_file({"w": WEIGHT}, file)
            else:
                file.write_bytes(b"x")
        return path

    return make


@pytest.mark.parametrize(
    "names, what",
    [
        ((".metadata", "__0_0.distcp"), "a distributed checkpoint (DCP)"),
        (("__0_0.distcp",), "without .metadata: saving it was cut short"),
        (("zero_to_fp32.py", "latest", "global_step9/"), "zero_to_fp32.py, which"),
        (("latest", "global_step9/"), "whose files are in global_step9"),
        (("mp_rank_00_model_states.pt",), "a checkpoint of DeepSpeed"),
        (
            ("config.json", "model-00001-of-00002.safetensors"),
            "from_pretrained(FOLDER) loads it; model-00001-of-00002.safetensors",
        ),
        (("pytorch_model.bin",), "pytorch_model.bin can be inspected"),
        (
            ("adapter_config.json", "adapter_model.safetensors"),
            "an adapter of peft, without its base model: adapter_model.safetensors",
        ),
        (
            ("model.safetensors", "optimizer.bin", "random_states_0.pkl"),
            "accelerate's save_state wrote: model.safetensors holds the weights",
        ),
        (("a", "b", "c", "d"), "a folder (a, b, c, ...): name a file in it"),
    ],
)
def test_a_folder_is_told_by_its_files(names, what, folder):
    """DCP's tool is named for DCP's folders only, as it fails on all others."""
    said = refusal("inspect", folder(*names))
    assert what in said
    assert ("dcp_to_torch" in said) == (".metadata" in names)


def old_tar() -> bytes:
    """Return a tar archive with the names that torch wrote before 0.1.10."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in "sys_info", "pickle", "storages", "tensors":
            archive.addfile(tarfile.TarInfo(name))
    return file.getvalue()


@pytest.mark.parametrize(
    "name, data, what",
    [
        ("__0_0.distcp", b"PK\3\4", "one rank's part of a distributed checkpoint"),
        (".metadata", b"\x80\4", "the index of a distributed checkpoint"),
        ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", b"PK\3\4", "ZeRO's"),
        ("latest", b"global_step1000", "newest checkpoint, global_step1000"),
        ("latest_checkpointed_iteration.txt", b"500\n", "newest checkpoint, 500"),
        ("in.pt", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        ("in.pt", b"<!doctype html><title>404</title>", "a web page"),
        ("in.h5", b"\x89HDF\r\n\x1a\n", "h5py"),
        ("in.pt", b"\x1f\x8b\x08", "gunzip"),
        ("in.pth.tar", old_tar(), "before 0.1.10"),
        ("config.json", b'{"hidden_size": 8}', "a JSON file"),
        ("vocab.json", '{"\u00e9t\u00e9": 8}'.encode(), "a JSON file"),
        (
            "model.safetensors.index.json",
            json.dumps({"weight_map": {"a": "1.safetensors", "b": "2"}}).encode(),
            "the index of a model in 2 files",
        ),
    ],
)
def test_a_whole_file_is_not_called_damaged(name, data, what, tmp_path):
    """It is named instead, with what reads it."""
    path = tmp_path / name
    path.write_bytes(data)
    said = refusal("inspect", path)
    assert what in said and "damaged" not in said


def test_arrays_of_numpy_are_named(tmp_path):
    """An .npz file is a zip archive, as torch's are."""
    np.savez(tmp_path / "in.npz", a=np.ones(3))
    assert "numpy.load" in refusal("inspect", tmp_path / "in.npz")


def test_torch_save_in_a_folder_of_any_name_is_read(tmp_path, capsys):
    """The names of formats don't keep an ordinary file from being read."""
    torch.save({"w": WEIGHT}, tmp_path / "latest")
    assert "6 numbers in 1 entries" in shown(capsys, "inspect", tmp_path / "latest")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_program_is_told_before_its_size_is_looked_at(tmp_path):
    """TorchScript packs its code, so that it unpacks to more than the file has."""
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    torch.jit.script(nn.TransformerEncoder(layer, 2).eval()).save(tmp_path / "in.pt")
    assert "torch.jit.load" in refusal("inspect", tmp_path / "in.pt")


def test_safetensors_are_opened_and_converted(tmp_path, capsys):
    """Their entries are listed, and convert takes prefixes off."""
    save_file({"module.w": WEIGHT, "module.h": WEIGHT.half()}, tmp_path / "in.st")
    assert "12 numbers in 2 entries" in shown(capsys, "inspect", tmp_path / "in.st")
    shown(capsys, "convert", tmp_path / "in.st", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt")["w"].equal(WEIGHT)
    data = (tmp_path / "in.st").read_bytes()
    (tmp_path / "in.st").write_bytes(data[:-5])
    assert "damaged" in refusal("inspect", tmp_path / "in.st")


@pytest.mark.parametrize("num_empty", [1, 4])
def test_empty_tensors_are_not_written(num_empty, saved, tmp_path, capsys):
    """ZeRO-3 leaves empty tensors, no weights to write."""
    keys = [*nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).state_dict()]
    state = {k: torch.empty(0 if i < num_empty else 3) for i, k in enumerate(keys)}
    path = saved({"module": state, "param_shapes": [], "ds_version": "0.19.8"})
    out = tmp_path / "out.pt"
    why = f"{num_empty} of its 4 tensors are empty: ZeRO-3"
    assert why in refusal("convert", path, out) and not out.exists()
    assert f"convert refuses it: {why}" in shown(capsys, "inspect", path)


def test_one_empty_tensor_of_a_plain_model_is_kept(saved, tmp_path, capsys):
    """A model may own an empty buffer; only a file without any number is refused."""
    path = saved({"w": WEIGHT, "empty": torch.empty(0)})
    shown(capsys, "convert", path, tmp_path / "out.pt")
    why = refusal("convert", saved({"a": torch.empty(0)}, "b.pt"), tmp_path / "c.pt")
    assert "1 of its 1 tensors are empty" in why and "rank that holds none" in why


def save_shards(path: str) -> None:
    """Save each rank's own state dict, as the careless do with FSDP2."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    fully_shard(net)
    torch.save({"model": net.state_dict()}, f"{path}/{torch.distributed.get_rank()}.pt")


def test_one_ranks_shards_are_listed_and_not_converted(tmp_path, capsys):
    """Half of each tensor, which weights_only loads, must not pass for all of it."""
    with Ranks(2) as ranks:
        ranks.run(save_shards, str(tmp_path))
    for rank in range(2):
        listed = shown(capsys, "inspect", tmp_path / f"{rank}.pt")
        assert "[8, 4], here [4, 4] of a DTensor" in listed
        assert "29 numbers in 4 entries" in listed
        why = refusal("convert", tmp_path / f"{rank}.pt", tmp_path / "out.pt")
        assert "one rank's shards" in why and "full_state_dict=True" in why
    with Ranks(1) as ranks:  # one rank's shard is all there is
        ranks.run(save_shards, str(tmp_path))
    shown(capsys, "convert", tmp_path / "0.pt", tmp_path / "out.pt")
    new = torch.load(tmp_path / "out.pt")
    assert {type(value) for value in new.values()} == {torch.Tensor}
    assert new["0.weight"].shape == (8, 4)


def test_pieces_of_a_real_distributed_checkpoint_are_named(tmp_path):
    """A folder that DCP wrote is known, and so are both kinds of files in it."""
    dcp.save({"w": WEIGHT}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert "(DCP)" in refusal("inspect", tmp_path / "dcp")
    for name in "__0_0.distcp", ".metadata":
        assert "its folder" in refusal("inspect", tmp_path / "dcp" / name)


def test_an_averaged_model_loads_into_the_plain_one(saved, tmp_path, capsys):
    """AveragedModel's prefix and counter go."""
    net = make_net()
    path = saved(AveragedModel(net).state_dict())
    assert "leaves out n_averaged" in shown(capsys, "inspect", path)
    said = shown(capsys, "convert", path, tmp_path / "out.pt")
    assert "not copied: n_averaged" in said
    make_net().load_state_dict(torch.load(tmp_path / "out.pt"))


def test_a_models_own_n_averaged_stays(saved, tmp_path, capsys):
    """The name alone does not make a file one of AveragedModel's."""
    path = saved({"n_averaged": torch.tensor(1), "weight": WEIGHT})
    shown(capsys, "convert", path, tmp_path / "out.pt")
    assert [*torch.load(tmp_path / "out.pt")] == ["n_averaged", "weight"]


def test_the_names_of_a_models_own_layers_are_no_prefix(saved, capsys):
    path = saved(
        nn.ModuleDict({name: nn.Linear(2, 2) for name in ("a", "b")}).state_dict()
    )
    assert "keys begin" not in shown(capsys, "inspect", path)


def test_a_prefix_of_the_readers_own_is_taken_off(saved, tmp_path, capsys):
    """Lightning's model., or one of ema-pytorch's two models: inspect says how."""
    net = make_net()
    state = {f"model.{k}": v for k, v in net.state_dict().items()}
    path = saved({"state_dict": state | {"loss.weight": WEIGHT}})
    listed = shown(capsys, "inspect", path)
    assert "keys begin with model. (9), loss. (1): convert --prefix model." in listed
    out = tmp_path / "out.pt"
    said = shown(capsys, "convert", path, out, "--prefix", "model.")
    assert "left out: 1 entries that do not begin with model." in said
    make_net().load_state_dict(torch.load(out))
    why = refusal("convert", path, tmp_path / "no.pt", "--prefix", "net.")
    assert why.startswith(f"{path}: no key begins with 'net.'")


@pytest.mark.parametrize(
    "make, what",
    [
        (lambda optim, _: optim.state_dict(), "of 2 parameters (exp_avg, exp_avg_sq,"),
        (
            lambda optim, _: torch.optim.lr_scheduler.StepLR(optim, 1).state_dict(),
            "a learning-rate scheduler's state, at step 0",
        ),
        (
            lambda *_: {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 0},
            "a GradScaler's state, with a scale of 65536.0",
        ),
    ],
    ids=["optimizer", "scheduler", "scaler"],
)
def test_what_holds_no_weights_is_named(make, what, saved):
    """It is whole, and no --entry could find a model in it."""
    net = nn.Linear(2, 3)
    optim = torch.optim.AdamW(net.parameters())
    net(torch.ones(2)).sum().backward()
    optim.step()
    said = refusal("inspect", saved(make(optim, net)))
    assert what in said and said.endswith("it holds no weights")


@pytest.mark.parametrize("part", ["_fsdp_wrapped_module", "_forward_module"])
def test_wrappers_names_go_wherever_they_stand(part, saved, tmp_path, capsys):
    """FSDP1, activation checkpoints and Fabric add names as torch.compile does."""
    path = saved(OrderedDict({f"a.{part}.weight": WEIGHT}))
    shown(capsys, "convert", path, tmp_path / "out.pt")
    assert [*torch.load(tmp_path / "out.pt")] == ["a.weight"]
