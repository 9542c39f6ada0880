"""The rows of chapter 12.2's table "And from DeepSpeed?", tried on two ranks.

In a folder of its own, this file is test_deepspeed.py. A test is named after its row's
options, and says the default; "ran" is what came out, "read" what a CPU can't show.
"""

import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfigError, get_gradient_clipping
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils import safe_get_full_fp32_param
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict
from engine import FREE, NUMBERS, SENDS, THREE, start, train
from rows import batches, build, fsdp2, near, off, on_ranks
from torch import nn

DEFAULT = DeepSpeedZeroConfig()


@pytest.fixture
def say(record_property):
    return lambda *said: record_property("said", "; ".join(said))


def test_stage_1__2(say, tmp_path):
    for stage in (1, 2):
        weights, seen, _ = on_ranks(tmp_path, train, {"stage": stage})[0]
        gap = near(weights)
        assert seen["between"] == 1 and seen["momentum"] == NUMBERS / 2
    near((ours := on_ranks(tmp_path, fsdp2, False)[0])[0])
    assert ours[1] == [0.5, 1]
    how = "between steps, weights are whole on each rank, with FSDP2 half"
    say(f"default {DEFAULT.stage}", f"ran: {gap}", how)


def test_stage_3(say, tmp_path):
    weights, seen, _ = on_ranks(tmp_path, train, THREE)[0]
    assert seen["between"] == 0 and seen["momentum"] == NUMBERS / 2
    near(on_ranks(tmp_path, fsdp2, True)[0][0])
    say(f"ran: {near(weights)}", "FSDP2's are as near")


def test_stage3_max_reuse_distance(say, tmp_path):
    live = [on_ranks(tmp_path, train, THREE | z)[0][1]["live"] for z in ({}, FREE)]
    _, shares = on_ranks(tmp_path, fsdp2, True)[0]
    assert live == [1, 0] and shares == [0.5, 0.5]
    how = "ran: after forward, weights stay whole; they are freed if this option "
    how += "and stage3_max_live_parameters are 0, as with FSDP2"
    say(f"default {DEFAULT.max_reuse_distance:,} numbers", how)


def test_stage3_param_persistence_threshold(say, tmp_path):
    limit = DEFAULT.param_persistence_threshold

    def kept(rank: int) -> list[int]:
        sizes = (limit, 1), (1, limit + 1), (limit + 1, 1)
        net = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
        engine = start(net, {"stage": 3})
        engine.backward(engine(torch.ones(5, limit)).square().mean())
        engine.step()
        return [m.weight.numel() for m in net]

    assert on_ranks(tmp_path, kept)[0] == [limit, 0, 0]
    say(f"default {limit:,}", "ran: between steps, 100,000 are whole, and 100,001 cut")


def test_stage3_prefetch_bucket_size__reduce_bucket_size(say, tmp_path):
    small = {"stage3_prefetch_bucket_size": 0, "reduce_bucket_size": 200}
    large, small = (on_ranks(tmp_path, train, THREE | z)[0][1] for z in ({}, small))
    gather, reduce = SENDS[1:]
    assert (large[gather], large[reduce]) == (1, 1)
    assert (small[gather], small[reduce]) == (3, 3)
    gather, reduce = DEFAULT.prefetch_bucket_size, DEFAULT.reduce_bucket_size
    how = "ran: with 0 and 200, three layers send three messages each way, not one"
    say(f"default {gather:,} and {reduce:,} numbers", how)


def test_overlap_comm(say):
    assert [s for s in range(4) if DeepSpeedZeroConfig(stage=s).overlap_comm] == [3]
    say("default on in stage 3, else off", "read: a CPU has no streams to overlap")


def test_zero_hpz_partition_size(say, tmp_path):
    zero = THREE | FREE | {"zero_hpz_partition_size": 2}
    weights, seen, _ = on_ranks(tmp_path, train, zero, world_size=4)[0]
    _, shares = on_ranks(tmp_path, fsdp2, 2, world_size=4)[0]
    assert near(weights, world_size=4) and seen["second"] == 0.5 == shares[1]
    how = "ran: with 2 on four ranks, half a copy stays after forward, as with FSDP2"
    say(f"default {DEFAULT.zero_hpz_partition_size}: off", how)


def test_mics_shard_size(say, tmp_path):
    def refused(rank: int) -> None:
        with pytest.raises(DeepSpeedConfigError, match=r"MiCS .* been removed"):
            start(build(), {"stage": 3, "mics_shard_size": 2})

    on_ranks(tmp_path, refused)
    say("default gone", "ran: DeepSpeed refuses it, as removed")


def test_offload_optimizer__offload_param(say, tmp_path):
    assert DEFAULT.offload_optimizer is DEFAULT.offload_param is None
    cpu = {"device": "cpu", "pin_memory": False}
    zero = THREE | {"offload_optimizer": cpu, "offload_param": cpu}
    gap = near(on_ranks(tmp_path, train, zero)[0][0])
    say("default none", f"ran with cpu: {gap}, but nothing moves", "read: nvme")


def test_stage3_gather_16bit_weights_on_model_save(say, tmp_path):
    default = DEFAULT.gather_16bit_weights_on_model_save
    for on, folder in ((default, tmp_path / "no"), (True, tmp_path / "yes")):
        zero = THREE | {"stage3_gather_16bit_weights_on_model_save": on}
        save = lambda engine: engine.save_16bit_model(str(folder))  # noqa: B023, E731
        weights, _, saved = on_ranks(tmp_path, train, zero, 1, save)[0]
        assert saved is on is folder.exists()
    assert off(torch.load(folder / "pytorch_model.bin"), weights) == 0
    say(f"default {default}", "ran: with True, save_16bit_model writes whole weights")


def test_gradient_clipping(say, tmp_path):
    default = get_gradient_clipping({})
    weights = on_ranks(tmp_path, train, THREE, 1, print, None, 100)[0][0]
    gap = near(weights, clip=default, loud=100)  # without clipping, off by more than 1
    say(f"default {default}", f"ran: it clips unasked; {gap} with clip_grad_norm_")


def test_loop(say, tmp_path):
    near(on_ranks(tmp_path, train, THREE, 2)[0][0], num=2)
    say("ran: with two micro-batches, engine.backward divides the loss by two")


def test_checkpoints(say, tmp_path):
    save = lambda engine: engine.save_checkpoint(str(tmp_path / "saved"))  # noqa: E731
    weights, _, _ = on_ranks(tmp_path, train, THREE, 1, save)[0]
    folders = str(tmp_path / "saved"), str(tmp_path / "one")
    convert_zero_checkpoint_to_fp32_state_dict(*folders)
    assert off(torch.load(tmp_path / "one" / "pytorch_model.bin"), weights) == 0
    say("ran: zero_to_fp32 brings back the weights, bit for bit")


def test_master_weights(say, tmp_path):
    def dtypes(rank: int) -> list[torch.dtype]:
        engine = start(build(), THREE, bf16={"enabled": True})
        engine.backward(engine(batches(1)[0, 0, rank].bfloat16()).square().mean())
        engine.step()
        weight = engine.module[1].weight
        return [weight.dtype, safe_get_full_fp32_param(weight).dtype]

    assert on_ranks(tmp_path, dtypes)[0] == [torch.bfloat16, torch.float32]
    say("ran: with bf16, float32 weights are beside the model's bf16 weights")
