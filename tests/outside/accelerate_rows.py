"""The rows of chapter 12.2's table "And from Accelerate?", tried on two ranks.

In a folder of its own, this file is test_accelerate.py. A test is named after its row's
options, and says the default; "ran" is what came out.
"""

import os
from argparse import Namespace

import pytest
import yaml
from accelerate import Accelerator
from accelerate.commands.to_fsdp2 import to_fsdp2_command
from accelerate.utils.launch import prepare_multi_gpu_env
from launcher import (
    BLOCKS,
    TWO,
    default,
    join,
    launched,
    parse,
    plugin,
    prepare,
    train,
    warned,
)
from rows import build, near, off, on_ranks, optimize
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture
def say(record_property):
    return lambda *said: record_property("said", "; ".join(said))


def test_fsdp_version(say, tmp_path):
    runs = (1, 0), (2, 0.1)
    found = [on_ranks(tmp_path, train, TWO, *run)[0] for run in runs]
    gaps = [near(w, num=n, clip=c) for (n, c), (w, _) in zip(runs, found, strict=True)]
    assert all(cut for _, cut in found)
    old = {"fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}
    files = tmp_path / "old.yaml", tmp_path / "new.yaml"
    files[0].write_text(yaml.safe_dump({"fsdp_config": old}))
    names = dict(zip(("config_file", "output_file"), map(str, files), strict=True))
    to_fsdp2_command(Namespace(**names, overwrite=False))
    new = {"fsdp_version": 2, "fsdp_reshard_after_forward": False}
    assert yaml.safe_load(files[1].read_text()) == {"fsdp_config": new}
    how = "2 micro-batches and clip_grad_norm_, too; to-fsdp2 rewrites a file"
    say(f"default {default('fsdp_version')}", f"ran with 2: {gaps[0]}", how)


def test_fsdp_reshard_after_forward(say, tmp_path):
    old = "--fsdp_sharding_strategy", "SHARD_GRAD_OP"
    flags = (), ("--fsdp_reshard_after_forward", "false"), old
    kept = [on_ranks(tmp_path, prepare, BLOCKS + f)[0][1] for f in flags]
    assert kept == [["Linear"], ["Embedding", "Block", "Block", "Linear"], ["Linear"]]
    with pytest.raises(ValueError, match="invalid truth value"):
        plugin(fsdp_version="2", fsdp_reshard_after_forward="FULL_SHARD")
    how = "false keeps the blocks' weights after forward; the old option does nothing"
    say(f"default {default('fsdp_reshard_after_forward')}", f"ran: {how}")


def test_fsdp_auto_wrap_policy(say, tmp_path):
    assert plugin(fsdp_version="2").auto_wrap_policy is None
    none, blocks = (on_ranks(tmp_path, prepare, f)[0] for f in (TWO, BLOCKS))
    assert none == (["Model", "Embedding", "Linear"], ["Block", "Block", "Linear"])
    assert blocks[0] == ["Model", "Embedding", "Block", "Block", "Linear"]
    how = "all blocks are in the model's unit, which keeps its weights after forward"
    say("default NO_WRAP", f"ran: {how}; embedding and head are units of their own")


def test_fsdp_state_dict_type(say, tmp_path):
    off = {"fsdp_sync_module_states": "false"}  # with True, version 1 needs a GPU
    off["fsdp_cpu_ram_efficient_loading"] = "false"
    one, two = (plugin(fsdp_version=v, **off).state_dict_type.name for v in ("1", "2"))

    def saved(rank: int, *flags: str) -> None:
        accelerator, net = join(TWO + flags), build()
        accelerator.prepare(net, optimize(net))
        accelerator.save_state(str(tmp_path / "saved"))

    full = "--fsdp_state_dict_type", "FULL_STATE_DICT"
    for flags, name in (((), "pytorch_model_fsdp_0"), (full, "pytorch_model_fsdp.bin")):
        on_ranks(tmp_path, saved, *flags)
        assert (tmp_path / "saved" / name).exists()
    how = "save_state writes a folder of parts; with FULL_STATE_DICT, one file"
    say(f"default {two}, with version 1 {one}", f"ran: {how}")


def test_fsdp_use_orig_params__fsdp_sync_module_states__fsdp_forward_prefetch(
    say, tmp_path
):
    names = "use_orig_params", "sync_module_states", "forward_prefetch"
    for value in ("true", "false"):
        flags = (word for name in names for word in (f"--fsdp_{name}", value))
        assert on_ranks(tmp_path, warned, *flags)[0] == ([], [None] * 4)
    file = {"fsdp_version": 2, "fsdp_sync_module_states": False}
    with pytest.raises(ValueError, match="set `--fsdp_sync_module_states` to `True`"):
        prepare_multi_gpu_env(Namespace(**vars(parse()) | file))
    file["fsdp_cpu_ram_efficient_loading"] = False
    prepare_multi_gpu_env(Namespace(**vars(parse()) | file))
    say("ran: no warning; but a file's fsdp_sync_module_states: false stops the launch")


def test_fsdp_backward_prefetch(say, tmp_path):
    flag = "--fsdp_backward_prefetch"
    (warning,), found = on_ranks(tmp_path, warned, flag, "BACKWARD_PRE")[0]
    assert "backward_prefetch is not supported in FSDP2" in warning and not any(found)
    say("ran: a warning")


def test_fsdp_cpu_ram_efficient_loading(say, tmp_path):
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 1}
    saved = LlamaForCausalLM(LlamaConfig(**sizes))
    saved.save_pretrained(tmp_path / "llama")
    wanted = saved.state_dict()

    def load(rank: int, value: str) -> tuple[float, float]:
        accelerator = join((*TWO, "--fsdp_cpu_ram_efficient_loading", value))
        net = LlamaForCausalLM.from_pretrained(tmp_path / "llama")
        first = off(net.state_dict(), wanted)
        net, _ = accelerator.prepare(net, optimize(net))
        whole = {n: p.full_tensor().detach() for n, p in net.named_parameters()}
        return first, off(whole, wanted)

    assert on_ranks(tmp_path, load, "true") == [(0, 0), (0, 0)]

    def differ(rank: int, value: str) -> float:
        accelerator = join((*TWO, "--fsdp_cpu_ram_efficient_loading", value))
        net = build(seed=rank)
        net, _ = accelerator.prepare(net, optimize(net))
        whole = {n: p.full_tensor().detach() for n, p in net.named_parameters()}
        return off(whole, build().state_dict())

    assert on_ranks(tmp_path, differ, "true") == [0, 0]
    assert min(on_ranks(tmp_path, differ, "false")) > 0.1
    how = "prepare cuts rank 0's weights for all, with false each rank's own; "
    how += "but from_pretrained reads the weights on both ranks"
    say(f"default {default('fsdp_cpu_ram_efficient_loading')}", f"ran: {how}")


def test_cpu(say, tmp_path):
    def kind(rank: int) -> str:
        os.environ |= launched(*TWO)
        accelerator, net = Accelerator(cpu=True), build()
        return type(accelerator.prepare(net, optimize(net))[0]).__name__

    assert on_ranks(tmp_path, kind)[0] == "DistributedDataParallel"
    say("ran: without a GPU, the FSDP options give DDP")
