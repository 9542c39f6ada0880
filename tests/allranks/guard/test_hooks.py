"""What the guard skips, says once or infers: hooks, Join, mesh axes, odd tensors."""

import re

import pytest
import torch
from torch import nn

from allranks import Ranks
from allranks.guard import Guard, GuardError
from allranks.guard.digests import digest_all


@pytest.fixture(scope="module")
def ranks():
    """Yield four ranks for the whole module."""
    with Ranks(4) as ranks:
        yield ranks


def hooked(case: str):
    """Train with a hook on gradients; return what was raised, and the warnings."""
    import warnings

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import (
        default_hooks,
        powerSGD_hook,
    )
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    from allranks.guard import Guard, GuardError

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    torch.manual_seed(rank)

    def half(_state, bucket):
        future = dist.all_reduce(bucket.buffer() / 8, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    def double(output):
        output *= 2

    if case.startswith("FSDP2"):
        fully_shard(net)
        if "hook" in case:
            net.set_all_reduce_hook(double)
        if "factor" in case:
            net.set_gradient_divide_factor(3.0)
            net.set_force_sum_reduction_for_comms(True)
        model = net
    else:
        model = DDP(net)
    if case == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if case in ("own", "own, and a rank apart") or (case == "one rank" and not rank):
        model.register_comm_hook(None, half)
    if case == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if case == "fp16 around PowerSGD":
        hook = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, hook)
    if case == "fp16, and doubled":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with Guard(model, optimizer, every=1) as watch:
                for step in range(4):
                    optimizer.zero_grad()
                    model(torch.randn(4, 12)).square().mean().backward()
                    if case == "fp16, and doubled":
                        for p in net.parameters():
                            p.grad *= 2
                    if case == "own, and a rank apart" and step == 2 and rank == 3:
                        net[0].weight.grad[1, 1] += 1
                    watch.step()
                    optimizer.step()
        except GuardError as error:
            said = str(error)
    found = [str(w.message) for w in caught if "guard: " in str(w.message)]
    return said, found


LEFT_OUT = {
    "PowerSGD": "DDP's communication hook powerSGD_hook makes",
    "fp16 around PowerSGD": "DDP's communication hook fp16_compress_wrapper",
    "own": "DDP's communication hook hooked.<locals>.half makes",
    "FSDP2 hook": "FSDP2's all_reduce hook hooked.<locals>.double makes",
    "FSDP2 factor": "FSDP2's gradient_divide_factor=3 makes",
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_hook_that_need_not_leave_the_mean_is_said_once_and_not_accused(ranks, case):
    """Only the first rank warns, and only once, however many checks follow."""
    (said, warned), *rest = ranks.run(hooked, case, timeout=60)
    assert rest == [("", [])] * 3
    assert said == ""
    assert len(warned) == 1
    assert LEFT_OUT[case] in warned[0]
    assert "does not compare" in warned[0]


def test_a_hook_that_only_rounds_is_still_checked(ranks):
    """A hook that rounds to 16 bits gives no warning, and a wrong factor is named."""
    assert ranks.run(hooked, "fp16", timeout=60) == [("", [])] * 4
    said = {text for text, _ in ranks.run(hooked, "fp16, and doubled", timeout=60)}
    assert len(said) == 1
    assert "every gradient is 2 times the mean" in said.pop()


def test_behind_a_hook_the_other_checks_go_on(ranks):
    """A gradient that one rank changed is named also behind a hook."""
    found = ranks.run(hooked, "own, and a rank apart", timeout=60)
    assert {said for said, _ in found} == {found[0][0]}
    assert re.search(r"step 3: the gradient .*0\.weight.*rank 3 is in", found[0][0])


def sharded_faults(case: str):
    """Accumulate under FSDP2 so that gradients are hidden, with or without a fault."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from allranks.guard import Guard, GuardError

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    torch.manual_seed(1 + dist.get_rank())
    options = {}
    if "mixed" in case:
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        options["mp_policy"] = policy
    if "hybrid" in case:
        options["mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    fully_shard(net[0], **options)
    fully_shard(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    compared = []
    try:
        with Guard(net, optimizer, every=1) as watch:
            if "zeros" in case:
                net(torch.ones(2, 6)).sum().backward()
            for step in range(3):
                if "thrown" in case:
                    (3 * net(torch.randn(4, 6)).float().sum()).backward()
                optimizer.zero_grad()
                for part in range(3):
                    if "late" in case:
                        net.set_requires_gradient_sync(part == 2)
                    if "hybrid" in case:
                        net.set_requires_all_reduce(part == 2)
                    x = torch.randn(4, 6)
                    (net(x).float().square().mean() / 3).backward()
                if "fault" in case and step == 2:
                    net[0].weight.grad.to_local().neg_()
                found = watch.checks.gradients.sketches.values()
                compared.append(all(bool(s.isfinite().all()) for s in found))
                watch.step()
                optimizer.step()
    except GuardError as error:
        return str(error), compared
    return "", compared


@pytest.mark.parametrize("how", ["mixed, late", "late", "thrown", "hybrid", "mixed"])
def test_gradients_that_fsdp2_hides_are_compared_with_the_mean(ranks, how):
    """Correct gradients pass and are compared in each step; a wrong one is named."""
    right = ranks.run(sharded_faults, how, timeout=60)
    assert right == [("", [True] * 3)] * 4
    wrong = {said for said, _ in ranks.run(sharded_faults, f"{how}, fault", timeout=60)}
    assert len(wrong) == 1
    assert re.search(
        r"step 3: the gradient of 0\.weight.* is not the mean", wrong.pop()
    )


def axes(case: str):
    """Train on four ranks in two pairs, each of which is tensor-parallel."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from allranks.guard import Guard, GuardError

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if "one mesh" in case:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(net, mesh["tensor"], plan)
        fully_shard(net, mesh=mesh["data"])
    else:
        pairs = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
        mine = dist.new_subgroups_by_enumeration(pairs[0])[0]
        other = dist.new_subgroups_by_enumeration(pairs[1])[0]
        parallelize_module(net, DeviceMesh.from_group(mine, "cpu"), plan)
    if "a replica apart" in case and rank == 3:
        net[0].weight.data.to_local()[1, 2] += 1
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    half = 0 if "one batch" in case else rank // 2
    half = rank if "a batch for each" in case else half
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(half))
    group = other if "group" in case else None
    try:
        with Guard(net, optimizer, every=1, group=group) as watch:
            for _ in range(2):
                for batch in watch.epoch([x, x + 1], 0):
                    optimizer.zero_grad()
                    net(batch).square().mean().backward()
                    if "one mesh" not in case:
                        for p in net.parameters():
                            dist.all_reduce(p.grad.to_local(), group=other)
                            p.grad.to_local().div_(2)
                    watch.step()
                    optimizer.step()
    except GuardError as error:
        return str(error)
    return ""


AXES = {
    "two meshes": "",
    "two meshes, group": "",
    "two meshes, a batch for each": r"rank 0 and rank 1 got different batches.*"
    r'group=mesh\["data"\]\.get_group\(\)',
    "two meshes, one batch": r"ranks 0, 1, 2, 3 got exactly the same samples",
    "two meshes, a replica apart": r"parameter 0\.weight is not .*element \[1, 2\]"
    r" is .* on rank 1 and .* on rank 3",
    "one mesh": "",
    "one mesh, a batch for each": r"rank 0 and rank 1 got different batches",
    "one mesh, one batch": r"ranks 0, 1, 2, 3 got exactly the same samples",
}


@pytest.mark.parametrize("case", AXES)
def test_who_shares_a_batch_is_read_from_the_meshes(ranks, case):
    """The meshes say which ranks form one model, so group= is not needed."""
    said = set(ranks.run(axes, case, timeout=20))
    assert len(said) == 1, said
    assert re.search(AXES[case] or "^$", said.pop())


def inside_join(case: str):
    """Train on unequal numbers of batches in Join, with the guard in the loop."""
    import warnings

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel as DDP

    from allranks.guard import Guard, GuardError

    torch.manual_seed(dist.get_rank())
    ddp = DDP(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    batches = [torch.randn(4, 3) for _ in range(2 + dist.get_rank())]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with Guard(ddp, optimizer, every=1) as watch:
                with Join([ddp]):
                    for x in watch.epoch(batches, 0):
                        optimizer.zero_grad()
                        ddp(x).square().mean().backward()
                        watch.step()
                        optimizer.step()
                if case == "apart" and dist.get_rank() == 2:
                    ddp.module.bias.data[1] = 7
                watch.check()
        except GuardError as error:
            return str(error)
    return sum("inside of Join" in str(w.message) for w in caught)


def test_inside_of_join_nobody_waits_and_the_check_after_it_finds_faults(ranks):
    """With 2 to 5 steps by rank, the guard says once that it only counts them."""
    assert ranks.run(inside_join, "right", timeout=60) == [1, 0, 0, 0]
    said = set(ranks.run(inside_join, "apart", timeout=60))
    assert len(said) == 1
    assert re.search(r"after Join: the parameter module\.bias.*7 on rank 2", said.pop())


def restart(case: str):
    """Save under FSDP2 or DDP, build again, load, and compare with the mark."""
    import io

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    from allranks.guard import Guard, GuardError

    def build():
        torch.manual_seed(dist.get_rank())
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        if "sharded" in case:
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
            fully_shard(net)
        else:
            net = DDP(net)
        return net, torch.optim.Adam(net.parameters(), 0.01)

    net, optimizer = build()
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = 0.001
    with Guard(net, optimizer) as watch:
        watch.steps = 3
        mark = watch.mark()
    state = get_state_dict(net, optimizer)
    file = io.BytesIO()
    if "sharded" not in case:  # rank 0 saves it
        torch.save({"net": net.module.state_dict(), "mark": mark}, file)
        found = [file.getvalue(), optimizer.state_dict()]
        dist.broadcast_object_list(found)
        saved = torch.load(io.BytesIO(found[0]))
        mark = saved["mark"]
    net, optimizer = build()
    if "sharded" in case:
        if "not loaded" not in case:
            set_state_dict(
                net, optimizer, model_state_dict=state[0], optim_state_dict=state[1]
            )
    else:
        if "not loaded" not in case:
            net.module.load_state_dict(saved["net"])
        if "weights only" not in case:
            optimizer.load_state_dict(found[1])
    if case == "one element" and dist.get_rank() == 1:
        net.module[2].weight.data[1, 3] += 1e-6
    if case == "rate":
        optimizer.param_groups[0]["lr"] = 0.01
    try:
        with Guard(net, optimizer, skip=("parameters",)) as watch:
            watch.checks.targets.skip -= {"parameters"}
            watch.resumed(mark)
            return f"step {watch.steps}"
    except GuardError as error:
        return str(error)


RESTARTS = {
    "right": "^step 3$",
    "sharded": "^step 3$",
    "sharded, not loaded": r"the parameter 0\.weight \(and 3 more of 4\) is not what "
    r"was saved; the optimizer state \w+ of 0\.weight \(and 11 more of 12\) is missing",
    "not loaded": r"on ranks 0, 1, 2, 3, the parameter 0\.weight .* is not what was",
    "weights only": r"state exp_avg of 0\.weight \(and 17 more of 18\) is missing; "
    r"optimizer 0 group 0: lr=0\.01, saved was 0\.001\. Load",
    "rate": r"on ranks 0, 1, 2, 3, optimizer 0 group 0: lr=0\.01, saved was 0\.001\.",
    "one element": r"the parameter 2\.weight is not what was saved\. Was",
}


@pytest.mark.parametrize("case", RESTARTS)
def test_a_restart_is_compared_with_its_mark(ranks, case):
    """Weights, optimizer state and rate are compared, with one sentence for all."""
    said = set(ranks.run(restart, case, timeout=60))
    assert len(said) == 1, said
    assert re.search(RESTARTS[case], said.pop()), said


def test_odd_tensors_are_compared_or_left_alone():
    """Sparse, quantized and meta tensors are compared or skipped; lazy ones refused."""
    net = nn.Linear(3, 3)
    net.register_buffer(
        "q", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    )
    channels = torch.quantize_per_channel(
        torch.ones(2, 3), torch.ones(2), torch.zeros(2), 0, torch.qint8
    )
    net.register_buffer("channels", channels)
    net.register_buffer("sparse", torch.eye(4).to_sparse())
    net.register_buffer("csr", torch.eye(4).to_sparse_csr())
    net.later = nn.Linear(2, 2, device="meta")
    with Guard(net, torch.optim.SGD(net.parameters(), 0.1)) as watch:
        net(torch.ones(1, 3)).sum().backward()
        watch.check()
        watch.resumed(watch.mark())
    with Guard(nn.Module()) as watch:
        watch.check()
    one = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    two = torch.quantize_per_tensor(torch.ones(4), 0.1, 1, torch.qint8)
    assert digest_all([one]) != digest_all([two])
    assert digest_all([torch.ones(3, device="meta")]) == digest_all([]) == 0
    with pytest.raises(GuardError, match="lazy parameter weight has no shape yet"):
        Guard(nn.LazyLinear(3))


def test_one_process_that_clips_scaled_gradients_is_told():
    """Even without a group, .grad must be what backward has computed."""
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 1024.0)
    with Guard(net, optimizer, scaler=scaler) as watch:
        scaler.scale(net(torch.ones(1, 2)).sum()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        with pytest.raises(GuardError, match="Clipped while still scaled"):
            watch.step()
