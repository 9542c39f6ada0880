"""The guard on sharded models, on more than two ranks, and on ranks that differ."""

import re

import pytest

from allranks import Ranks


@pytest.fixture(scope="module")
def ranks():
    """Yield four ranks for the whole module."""
    with Ranks(4) as ranks:
        yield ranks


def train_sharded(case: str, watched: bool = True, steps: int = 7):
    """Train with FSDP2, HSDP, TP or both; return what the guard said, and weights."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from allranks.guard import Guard, GuardError
    from allranks.guard.digests import digest_all, local

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 7),
        nn.LayerNorm(7),
        nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 8)),
        nn.Linear(8, 3),
    )
    options = {}
    if case == "mixed precision":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
    if case == "kept whole":
        options["reshard_after_forward"] = False
    if case in ("hybrid", "hybrid apart"):
        options["mesh"] = init_device_mesh(
            "cpu", (2, 2), mesh_dim_names=("copy", "shard")
        )
    if case in ("both", "tensor"):
        shape = (2, 2) if case == "both" else (1, 4)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        options["mesh"] = mesh["data"]
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(net[2], mesh["tensor"], plan)
    if case != "tensor":
        fully_shard(net[2], **options)
        fully_shard(net, **options)
    optimizer = torch.optim.Adam(net.parameters(), 0.01, foreach=False)
    share = {"both": rank // 2, "tensor": 0}.get(case, rank)
    chance = torch.Generator().manual_seed(share)
    watch, said = None, ""
    try:
        if watched:
            watch = Guard(net, optimizer, every=3)
            if case not in ("both", "tensor"):
                watch.preflight(
                    lambda m, b: nn.functional.mse_loss(m(b[0]).float(), b[1]),
                    (torch.randn(4, 6, generator=chance), torch.randn(4, 3)),
                    tolerance=0.05 if case == "mixed precision" else 1e-4,
                )
                chance.manual_seed(share)
        for step in range(steps):
            if case == "thrown away":
                net(torch.randn(4, 6, generator=chance)).square().mean().backward()
            optimizer.zero_grad()
            for _ in range(2):
                x = torch.randn(4, 6, generator=chance)
                y = torch.randn(4, 3, generator=chance)
                (nn.functional.mse_loss(net(x).float(), y) / 2).backward()
            if case == "clip":
                nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            if case == "one shard" and rank == 2:
                net[0].weight.grad.to_local().mul_(-1)
            if case == "shifted" and rank == 1:  # the same error in all of the shard
                net[2][0].weight.grad.to_local().add_(0.1)
            if watched:
                watch.step()
            optimizer.step()
            if case == "hybrid apart" and rank == 3 and step == 3:
                net[2][2].weight.detach().to_local()[1, 2] += 1
    except GuardError as error:
        said = str(error)
    finally:
        if watch:
            watch.remove()
    return said, digest_all([local(p) for p in net.parameters()])


@pytest.mark.parametrize(
    "case",
    [
        "plain",
        "mixed precision",
        "kept whole",
        "clip",
        "thrown away",
        "hybrid",
        "tensor",
        "both",
    ],
)
def test_a_healthy_sharded_training_passes(ranks, case):
    """The guard is silent under FSDP2 with its options, HSDP, TP, and TP in FSDP2."""
    watched = ranks.run(train_sharded, case, steps=4, timeout=60)  # checked after 3
    assert [said for said, _ in watched] == [""] * 4
    bare = ranks.run(train_sharded, case, False, steps=4, timeout=60)
    assert watched == bare


@pytest.mark.parametrize(
    ("case", "pattern"),
    [
        ("one shard", r"^step 1: the gradient of 0\.weight is not the mean"),
        ("shifted", r"^step 1: the gradient of 2\.0\.weight is not the mean"),
        ("hybrid apart", r"parameter 2\.2\.weight is not .*\[1, 2\] is .*rank 1 and"),
    ],
)
def test_a_shard_that_is_wrong_is_named(ranks, case, pattern):
    """It names a shard's gradient, or an element that differs in a copy of a shard."""
    said = {text for text, _ in ranks.run(train_sharded, case, timeout=60)}
    assert len(said) == 1
    assert re.search(pattern, said.pop())


def guarded(case: str):
    """Make one of four ranks differ; return what the guard tells this rank."""
    import datetime

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    from allranks.guard import Guard, GuardError

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    ddp = DDP(net)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    torch.manual_seed(0 if case == "same seed" else rank)
    batches = [torch.full((4, 3), float(4 * i + rank)) for i in range(3)]
    for number, batch in enumerate(batches):
        batch += torch.arange(4)[:, None] / 10 + number
    try:
        if case == "names" and rank == 2:
            ddp.module[0].extra = nn.Parameter(torch.ones(1))
        if case == "weights" and rank == 2:
            net[0].bias.data[1] = 7
        asked = 8 if case == "world" else None
        if case == "names":
            optimizer = None
        watch = Guard(ddp, optimizer, every=1, world_size=asked, patience_s=60)
        if case == "same":
            watch.same(loss=torch.tensor(1.5), right=4 if rank == 1 else 3)
        if case == "dtype":
            watch.same(loss=torch.tensor(1) if rank == 3 else torch.tensor(1.0))
        if case == "metric":
            watch.metric(0.5 + rank / 4, total=rank, count=2)
        if case == "counted":
            watch.metric(0.5, total=1, count=2, samples=7)
        if case == "never":  # from here on no rank waits long
            exchange, soon = watch.checks.exchange, datetime.timedelta(seconds=1)
            exchange.patience_s = 1
            dist.distributed_c10d._set_pg_timeout(soon, exchange.group)
            if rank == 3:
                watch.remove()  # else its group would still owe a collective
                return ""
        if case == "fewer":
            batches = batches[: 2 if rank == 1 else 3]
        if case == "fewer, unknown":
            batches = iter(batches[: 2 if rank == 1 else 3])
        if case == "alike" and rank in (1, 3):
            batches = [torch.eye(4, 3) * i for i in range(1, 4)]
        if case == "batch":
            list(watch.epoch(batches, 0, global_batch=8))
        for x in watch.epoch(batches, 0):
            optimizer.zero_grad()
            ddp(x).sum().backward()
            if case == "left out" and rank == 1 and watch.steps == 1:
                watch.check()
            watch.step()
            optimizer.step()
        return ""
    except GuardError as error:
        return str(error)
    finally:
        dist.barrier()


@pytest.mark.parametrize(
    ("case", "pattern"),
    [
        (
            "names",
            r"nothing on ranks 0, 1, 3; module\.0\.extra .* on rank 2 \(rank 2 is",
        ),
        (
            "weights",
            r"element \[1\] is .* on ranks 0, 1, 3 and 7 on rank 2 \(rank 2 is",
        ),
        ("world", r"8 ranks were asked for, 4 came"),
        ("same", r"value right.* is not .* it is 3 on ranks 0, 2, 3 and 4 on rank 1"),
        ("dtype", r"value loss, torch\.float32.* on ranks 0, 1, 2 and none on rank 3"),
        ("metric", r"0\.5 on rank 0, 0\.75 on rank 1.*over all 8 samples is 0\.75"),
        ("counted", r"8 samples were counted \(2, 2, 2, 2 by rank\) of 7"),
        ("fewer", r"batches in this epoch: 3 on ranks 0, 2, 3, 2 on rank 1"),
        ("fewer, unknown", r"batch 3 of epoch 0: no batch is left on rank 1 after 2"),
        ("alike", r"step 1: ranks 1, 3 got exactly the same samples"),
        ("batch", r"a step takes 16 samples \(\[4, 4, 4, 4\] by rank\), not 8"),
        ("same seed", r"ranks 0, 1, 2, 3 draw the same random numbers \(CPU"),
        ("left out", r"not at the same place: rank 0 at step 2, rank 1 at step 1,"),
        (
            "never",
            r"^the start of epoch 0: one of ranks 0, 1, 2, 3 did not come within 1 s",
        ),
    ],
)
def test_all_ranks_are_told_the_same_and_who_is_odd(ranks, case, pattern):
    """Every rank raises the same sentence, it names the odd one, and none hangs."""
    said = set(ranks.run(guarded, case, timeout=60)) - {"" if case == "never" else None}
    assert len(said) == 1, said
    assert re.search(pattern, said.pop())
