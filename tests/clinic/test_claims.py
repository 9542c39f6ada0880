"""Claims about torch in the prose of a case hold, where no cell of it plays them."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import distributed_c10d, run

from allranks import Ranks, RanksError, clinic
from allranks.clinic.play import STALL_S

CLINIC = Path(__file__).resolve().parents[2] / "clinic"


def prose(slug, part):
    """Return a paragraph of a case as one line."""
    return " ".join(clinic.read(CLINIC / f"{slug}.py").parts[part].split())


def test_the_default_timeouts_differ():
    """By default NCCL waits 10 minutes for ranks that never come, and gloo 30."""
    says = prose("world-size-too-big", "You see")
    short, long = re.search(
        r'(\d+) minutes for "nccl", and (\d+) for "gloo"', says
    ).groups()
    document = torch.distributed.init_process_group.__doc__
    assert f"{short} minutes for NCCL and {long} minutes for other" in document
    for name in "gloo", "undefined":  # "undefined": if no backend is named
        assert distributed_c10d._get_default_timeout(name).seconds == 60 * int(long)


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_optimizer_fails_one_line_later(fused):
    """A fused optimizer fails one line later: in update(), not in step().

    Gradients that are zero, unlike none at all, move the weights by momentum.
    """
    net, says = nn.Linear(1, 1), prose("amp-no-inf-checks", "You see")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu")

    def step(num_rows):
        optimizer.zero_grad()
        if num_rows is not None:
            scaler.scale(net(torch.ones(num_rows, 1)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return net.weight.item()

    after_one = step(1)
    with pytest.raises(AssertionError) as end:
        step(None)
    assert str(end.value).rstrip(".") in says
    assert end.traceback[-1].name == ("update" if fused else "step")
    if not fused:
        assert net.weight.item() == after_one
        scaler = torch.amp.GradScaler("cpu")
        assert step(0) < after_one, prose("amp-no-inf-checks", "Cure")


@pytest.mark.parametrize(("found", "backend"), [("cuda", "nccl"), ("cpu", "gloo")])
def test_without_a_backend_the_accelerators_is_taken_alone(found, backend, monkeypatch):
    """If no backend is named, the group gets that of the accelerator, and no other."""
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device(found))
    device = None if found == "cpu" else torch.device(found)  # torch 2.15 asks this:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    config = distributed_c10d.BackendConfig(distributed_c10d.Backend("undefined"))
    assert config.get_device_backend_map() == {found: backend}
    says = prose("no-backend-for-device", "Cure")
    assert "It must be named: without a backend" in says


def test_a_guard_sees_the_figure_and_not_the_handle():
    """The guard catches what is passed to metric(), and the case says so."""
    case = clinic.read(CLINIC / "async-no-wait.py")
    assert "metric: reported is" in clinic.recorded(case)["guarded"].text
    says = prose("async-no-wait", "Next time")
    assert "cannot see a handle" in says and "`metric`" in says


def test_cures_say_what_the_repaired_code_does():
    """The words of a cure name what the repaired code really does."""
    stage = clinic.read(CLINIC / "pp-rank-skips-step.py")
    assert "ReduceOp.MIN" in stage.cells["fixed"]
    assert "smallest number" in stage.parts["Cure"]
    peer = clinic.read(CLINIC / "nccl-unhandled-cuda-error.py")
    assert "NCCL_P2P_DISABLE=1" in peer.cells["fixed"]
    assert "NVLink" in peer.parts["Cure"]
    watchdog = clinic.read(CLINIC / "nccl-watchdog.py")
    assert "dist.barrier()" in watchdog.cells["broken"]
    assert "NumelIn=1," in watchdog.path.read_text("utf8")  # in the quoted line
    says = " ".join(watchdog.parts["Next time"].split())
    assert "or a barrier: NCCL has no barrier" in says


def test_heads_are_divided_by_what_the_case_says():
    """The ways to divide attention heads that the case names are right."""
    says = prose("tp-indivisible", "Cure")
    heads, ways, never = re.search(
        r"(\d+) heads can be split over ([\d, or]+) ranks, but never over (\d+)", says
    ).groups()
    assert all(int(heads) % int(way) == 0 for way in re.findall(r"\d+", ways))
    assert int(heads) % int(never)


@pytest.mark.parametrize("tool", ["ss", "lsof"])
def test_the_holder_of_a_port_is_named(tool):
    """The case's command names this process as the holder of its port."""
    if not shutil.which(tool):
        pytest.skip(f"no {tool} on this machine")
    command = re.search(rf"`({tool} [^`]+)`", prose("port-in-use", "Cure"))[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = command.replace("29500", str(server.getsockname()[1]))
        answer = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert str(os.getpid()) in answer.stdout


@pytest.mark.parametrize(
    ("flags", "backend", "endpoint"),
    [
        ([], "c10d", "localhost:0"),
        (["--standalone"], "c10d", "localhost:0"),
        (["--master-port", "29501"], "static", "127.0.0.1:29501"),
    ],
)
def test_torchrun_takes_a_free_port_unless_one_is_named(
    flags, backend, endpoint, monkeypatch
):
    """torchrun chooses a port as the case on a port in use says."""
    taken = []
    monkeypatch.setattr(
        run,
        "elastic_launch",
        lambda config, entrypoint: lambda *a: taken.append(config),
    )
    run.run(run.parse_args([*flags, "train.py"]))
    assert (taken[0].rdzv_backend, taken[0].rdzv_endpoint) == (backend, endpoint)


def test_dcp_fills_the_tensors_that_there_are(tmp_path):
    """Weights come back by themselves, but not what an optimizer has yet to make."""
    says = prose("dcp-load-not-set", "Cause")
    assert "the weights come back by themselves" in says
    assert "An optimizer that has not stepped has no tensors" in says

    def state(net, optimizer):
        return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}

    (trained, stepped), (net, optimizer) = made = [
        (net, torch.optim.AdamW(net.parameters()))
        for net in (nn.Linear(2, 2), nn.Linear(2, 2))
    ]
    trained(torch.ones(1, 2)).sum().backward()
    stepped.step()
    saved, loaded = (state(*one) for one in made)
    dcp.save(saved, checkpoint_id=tmp_path / "last", no_dist=True)
    dcp.load(loaded, checkpoint_id=tmp_path / "last", no_dist=True)
    assert torch.equal(net.weight, trained.weight)
    assert len(stepped.state) == 2 and not optimizer.state


LONE = clinic.read(CLINIC / "fsdp-rank0-eval.py")
ORIGINS = """
wholes = [layer.weight.full_tensor().detach() for layer in layers]

def say_origins(layer, _):  # of the weight that forward uses
    rows = [[w[i].equal(layer.weight[i]) for w in wholes] for i in range(4)]
    print("rows of", [row.index(True) for row in rows])

layers[0].register_forward_pre_hook(say_origins)
"""


def hang(given: str) -> tuple[list[str], str]:
    """Play the broken cell of a lone evaluation; return what ranks print, and where."""
    with Ranks(2) as ranks:
        ranks.stall = STALL_S
        ranks.run_cell(given, "given", quiet=True)
        with pytest.raises(RanksError) as end:
            ranks.run_cell(LONE.cells["broken"], "broken", quiet=True)
        return ranks.outputs, str(end.value)


def test_after_a_lone_evaluation_rank_0_mixes_two_layers():
    """Its forward gathers what the others' backward does."""
    (zero, one), where = hang(LONE.given + ORIGINS)
    own, mixed = "rows of [0, 0, 0, 0]", "rows of [0, 0, 2, 2]"
    rows = [line for line in zero.splitlines() if line.startswith("rows")]
    assert rows == [own, own, mixed], prose(LONE.slug, "Cause")
    assert one.splitlines() == [own, own]
    assert "rank 0 waits in `loss = model(x).mean()`" in where


def test_one_unit_hangs_only_in_the_last_lone_evaluation():
    """Rank 0 keeps the only unit, so its next forward gathers nothing."""
    assert "If the whole model is one unit" in prose(LONE.slug, "Next time")
    one_unit = LONE.given.replace("fully_shard(nn.Linear(4, 4))", "nn.Linear(4, 4)")
    (zero, one), where = hang(one_unit)
    assert one == "2 steps done\n" and zero.startswith("step 0 validated")
    assert "rank 0 waits in `print(" in where and "rank 1 finished" in where


def test_rank_0_may_evaluate_a_whole_copy_alone():
    """All ranks gather the weights, and the copy of rank 0 is not sharded."""
    assert "get_model_state_dict" in prose(LONE.slug, "Cure")
    cure = """
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict,
)

whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
for step in range(2):
    loss = model(x).mean()
    loss.backward()
    state = get_model_state_dict(model, options=whole)
    if rank == 0:
        copy = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)], nn.Linear(4, 1))
        copy.load_state_dict(state)
        with torch.no_grad():
            assert copy.eval()(x).mean().equal(loss)
len(state)
"""
    with Ranks(2) as ranks:
        ranks.run(LONE.given, quiet=True)
        assert ranks.run(cure, quiet=True) == [8, 0]  # only rank 0 keeps them
