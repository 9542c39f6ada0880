"""The guard is silent on healthy trainings, exact on broken ones, without a trace."""

import ast
import re
import sys

import pytest
import torch

from allranks import Ranks, clinic
from allranks.base.paths import ROOT
from allranks.guard import Guard, GuardError
from allranks.guard.digests import digest, digest_all, sketch

EXAMPLE = ROOT / "book" / "_examples" / "guarded.py"
FOLDER = ROOT / "allranks" / "guard"


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


def train(case: str, watched: bool = True, steps: int = 9):
    """Train a small model with DDP; it is healthy unless ``case`` is in MUTATIONS.

    Returns:
        What the guard said ("" if nothing), the number of steps done, a digest of the
        parameters and one of the random state.
    """
    import contextlib

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from allranks.guard import Guard, GuardError
    from allranks.guard.digests import digest, digest_all

    rank = dist.get_rank() if case != "one rank" else 0
    size = dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(44, 6), torch.randn(44, 2))
    torch.manual_seed(rank)
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2)]
    if case == "batch norm":
        layers[1] = nn.BatchNorm1d(8)
    if case == "dropout":
        layers.insert(1, nn.Dropout(0.2))
    net = nn.Sequential(*layers)
    net.register_buffer("mask", torch.ones(3, dtype=torch.bool))
    if case == "tied":
        net.insert(3, nn.Linear(8, 8, bias=False))
        net[3].weight = net[2].weight
    if case in ("frozen", "unfrozen", "trainable"):
        net[0].requires_grad_(False)
    if case == "not finite":  # as in masks
        net.never = nn.Parameter(torch.full((2,), -torch.inf), requires_grad=False)
    if case == "half":
        net.to(torch.bfloat16)
    options = {
        "unused": {"find_unused_parameters": True},
        "bucket view": {"gradient_as_bucket_view": True},
        "static graph": {"static_graph": True},
        "frozen buffer": {"broadcast_buffers": False},
        "own buffers": {"broadcast_buffers": False},
    }.get(case, {})
    if case == "one rank":
        options["process_group"] = [dist.new_group([r]) for r in range(size)][
            dist.get_rank()
        ]
    ddp = DDP(net, **options)

    def in_16_bits(_state, bucket):
        short = bucket.buffer().bfloat16() / size
        future = dist.all_reduce(short, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].float())

    if case == "fp16 hook":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if case == "bf16 hook":  # torch's own needs NCCL
        ddp.register_comm_hook(None, in_16_bits)
    if case == "unfrozen":
        net[0].requires_grad_(True)
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", 1024.0, enabled=case == "scaler")
    sampler = DistributedSampler(data)
    if case == "iterable":
        loader = [
            (x[rank::size], y[rank::size])
            for x, y in zip(
                *map(
                    list, [data.tensors[0][:40].split(8), data.tensors[1][:40].split(8)]
                ),
                strict=True,
            )
        ]
        batches = lambda: (batch for batch in loader)  # noqa: E731
    else:
        loader = DataLoader(data, 4, sampler=sampler)
        batches = lambda: loader  # noqa: E731
    mean = torch.optim.swa_utils.AveragedModel(net) if case == "ema" else None
    watch, parts = None, 3 if case == "accumulate" else 1

    def loss_of(model, x, y):
        if case == "half":
            x, y = x.bfloat16(), y.bfloat16()
        return nn.functional.mse_loss(model(x), y)

    done, said, epoch = 0, "", 0
    try:
        if watched:
            group = options.get("process_group")
            watch = Guard(ddp, optimizer, every=3, scaler=scaler, group=group)
            if size > 1 and case not in ("iterable", "unfrozen"):
                tolerance = 0.05 if "1" in case or case == "half" else 1e-4
                first = data[4 * rank : 4 * rank + 4]
                watch.preflight(lambda m, b: loss_of(m, *b), first, tolerance=tolerance)
        while done < steps:
            sampler.set_epoch(epoch)
            feed = watch.epoch(batches(), epoch) if watched else batches()
            for x, y in feed:
                optimizer.zero_grad()
                for part in range(parts):
                    last = part == parts - 1
                    with contextlib.nullcontext() if last else ddp.no_sync():
                        loss = loss_of(ddp, x + part, y) / parts
                        scaler.scale(loss).backward()
                if case == "clip":
                    nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
                if case == "scaler":
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
                if case == "gradient" and rank == 1 and done == 5:
                    net[2].weight.grad[1, 2] += 1
                if case == "doubled":
                    for p in ddp.parameters():
                        p.grad *= 2
                if watched:
                    watch.step()
                scaler.step(optimizer)
                scaler.update()
                done += 1
                if mean is not None:
                    mean.update_parameters(net)
                if rank == 1 and done == 4:
                    if case == "parameter":
                        net[2].weight.data.view(torch.int32)[5, 6] ^= 1
                    if case == "frozen buffer":
                        net.mask[2] = False
                    if case == "state":
                        optimizer.state[net[0].bias]["exp_avg"][3] += 1e-6
                    if case == "rate":
                        optimizer.param_groups[0]["lr"] = 0.02
                    if case == "trainable":
                        net[0].bias.requires_grad_(True)
            epoch += 1
    except GuardError as error:
        said = str(error)
    finally:
        if watch:
            watch.remove()
            watch.remove()
    weights = digest_all(list(net.parameters()))
    return said, done, weights, int(digest(torch.get_rng_state()))


HEALTHY = [
    "plain",
    "batch norm",
    "dropout",
    "accumulate",
    "scaler",
    "clip",
    "bf16 hook",
    "fp16 hook",
    "half",
    "frozen",
    "tied",
    "unused",
    "bucket view",
    "static graph",
    "own buffers",
    "not finite",
    "iterable",
    "ema",
    "one rank",
]


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_training_passes_and_is_bit_identical_without_the_guard(ranks, case):
    """There is no false alarm, and parameters and random state are not affected."""
    watched = ranks.run(train, case, timeout=60)
    assert [said for said, *_ in watched] == ["", ""]
    bare = ranks.run(train, case, False, timeout=60)
    assert [result[1:] for result in watched] == [result[1:] for result in bare]


MUTATIONS = {  # case: most steps until it is found, and what the sentence must contain
    "parameter": (5, r"parameter module\.2\.weight is not .*element \[5, 6\]"),
    "frozen buffer": (
        8,
        r"buffer module\.mask is not .*element \[2\] is True on rank 0",
    ),
    "state": (5, r"optimizer state exp_avg of module\.0\.bias .*element \[3\]"),
    "rate": (5, r"optimizer's settings .*lr=0\.01 on rank 0; .*lr=0\.02 on rank 1"),
    "trainable": (5, r"requires_grad=False on rank 0; .*requires_grad=True on rank 1"),
    "gradient": (5, r"gradient module\.2\.weight is not .*element \[1, 2\]"),
    "doubled": (0, r"every gradient is 2 times the mean"),
    "unfrozen": (0, r"gradient module\.0\.\w+ \(and 1 more\) is not .*Nobody synch"),
}


@pytest.mark.parametrize("case", MUTATIONS)
def test_a_single_change_on_one_rank_is_named_by_both_ranks_alike(ranks, case):
    """One bit, element or number is found at the next check, in the same sentence."""
    latest, pattern = MUTATIONS[case]
    (first, done, *_), (second, *_) = ranks.run(train, case, timeout=60)
    assert first == second
    assert re.search(pattern, first), first
    assert done <= latest


def habit(case: str):
    """Train in one of the ways that people do; return what the guard said, or ""."""
    from collections import UserDict

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from allranks.guard import Guard, GuardError

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 6))
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    if case == "a cache":
        net.register_buffer("cache", torch.zeros(3 + rank), persistent=False)
    if case == "8 bits":
        net.register_buffer("small", torch.full((9,), 2.0 + rank).to(torch.float8_e5m2))
    torch.manual_seed(rank + 1)
    plain = case in ("a cache", "8 bits", "double backward")
    ddp = net if plain else DDP(net)
    parameters = list(ddp.parameters())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    if case == "an object":
        optimizer.param_groups[0]["schedule"] = [object() for _ in range(9)][rank]
    scaler = torch.amp.GradScaler("cpu", 64.0, enabled=case == "half unscaled")
    both = [torch.optim.SGD(net[0].parameters()), torch.optim.SGD(net[2].parameters())]
    half = case == "half unscaled"
    watch = Guard(ddp, both if half else optimizer, every=1, scaler=scaler)

    def step(x):
        if case in ("thrown away", "thrown away, zeros"):  # as in GANs and SAM
            ddp(x * 2).square().mean().backward()
        optimizer.zero_grad(set_to_none=case != "thrown away, zeros")
        if case == "autograd.grad":
            torch.autograd.grad(net(x).sum(), parameters)
        loss = ddp(x).square().mean()
        if case == "double backward":
            made = torch.autograd.grad(loss, parameters, create_graph=True)
            loss = loss + sum(grad.square().sum() for grad in made)
        scaler.scale(loss).backward()
        if half:
            scaler.unscale_(both[0])
        if plain:
            for p in parameters:
                dist.all_reduce(p.grad)
                p.grad /= size
        if case == "default device":
            with torch.device("meta"):
                watch.step()
                watch.metric(watch.mean(1, 2), total=1, count=2)
        else:
            watch.step()
        scaler.step(both[0]) if half else optimizer.step()
        scaler.update() if half else None

    def share(epoch):  # the other half in the next epoch
        first = 16 * ((rank + epoch) % size)
        for row in range(first, first + 16):
            yield data.tensors[0][row][None]

    try:
        if case == "two loaders":
            samplers = [DistributedSampler(data), DistributedSampler(data)]
            for loader in [DataLoader(data, 8, sampler=s) for s in samplers]:
                for (x,) in watch.epoch(loader, 0):
                    step(x)
        elif case == "own sampler":
            loader = DataLoader(data, 8, sampler=range(rank, 32, size))
            for epoch in range(2):
                for (x,) in watch.epoch(loader, epoch):
                    step(x)
        elif case == "left early":
            for epoch in range(2):
                for count, x in enumerate(watch.epoch(share(epoch), epoch)):
                    step(x)
                    if count == 7 and epoch == 0:
                        break
        else:
            if case == "mapping":
                batch = UserDict(x=torch.randn(3, 6))
                watch.preflight(lambda m, b: m(b["x"]).square().mean(), batch)
            for _ in range(4):
                step(torch.randn(4, 6))
        return ""
    except GuardError as error:
        return str(error)
    finally:
        watch.remove()


HABITS = {
    "thrown away": "",
    "thrown away, zeros": "",
    "autograd.grad": "",
    "double backward": "",
    "two loaders": "",
    "own sampler": "",
    "left early": "",
    "an object": "",
    "a cache": "",
    "half unscaled": "",
    "default device": "",
    "mapping": "",
    "8 bits": "buffer small is not the same .* is 2 on rank 0 and 3 on rank 1",
}


@pytest.mark.parametrize("case", HABITS)
def test_what_people_do_raises_no_alarm(ranks, case):
    """Discarded gradients, other samplers and odd batches are healthy, so they pass."""
    first, second = ranks.run(habit, case, timeout=60)
    assert first == second
    assert re.search(HABITS[case], first) if HABITS[case] else not first, first


def test_what_cannot_be_guarded_is_refused_in_a_sentence(ranks):
    """FSDP1, a foreign group, an unknown word in skip= and a lone Guard are refused."""

    def refused():
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import FullyShardedDataParallel

        from allranks.guard import Guard

        rank, net, said = dist.get_rank(), nn.Linear(2, 2), []
        first = dist.new_group([0])
        flat = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
        made = dist.new_group

        def alone(*_args, **_options):  # as if the other ranks built no Guard
            raise RuntimeError("Wait timeout")

        for only, model, options in (
            ((0, 1), flat, {}),
            ((1,), None, {"group": first}),
            ((0, 1), None, {"skip": ("gradient",)}),
            ((0, 1), None, {"patience_s": 7}),
        ):
            if rank in only:
                dist.new_group = alone if options.get("patience_s") == 7 else made
                try:
                    Guard(model, **options)
                except (ValueError, RuntimeError) as error:
                    said.append(f"{type(error).__name__}: {error}")
                finally:
                    dist.new_group = made
        return said

    said = ranks.run(refused, timeout=60)
    assert re.search(r"^GuardError: .*FSDP1", said[0][0])
    assert said[0][0] == said[1][0]
    assert re.search(r"^ValueError: rank 1 is not in the group", said[1][1])
    assert re.search(r"^ValueError: skip=\('gradient',\): there are", said[0][1])
    assert re.search(
        r"^GuardError: .*7 s.* ranks 0, 1 must build its Guard", said[0][2]
    )


def test_digests_and_sketches_in_one_process():
    """A bit flip, a swap and a shift change the digest, and sketches are linear."""
    torch.manual_seed(0)
    x = torch.randn(3, 2049)
    for change in (
        lambda t: t.view(torch.int32)[2, 2000].bitwise_xor_(1),
        lambda t: t.copy_(t[[1, 0, 2]]),
        lambda t: t.copy_(t.roll(1)),
    ):
        y = x.clone()
        change(y)
        assert digest(x) != digest(y) and digest_all([x]) != digest_all([y])
    a, b = torch.randn(2, 1, 5000)
    mean = (sketch(a) + sketch(b))[0, :2] / 2
    torch.testing.assert_close(sketch((a + b) / 2)[0, :2], mean, rtol=1e-4, atol=1e-4)
    # Two columns of a sketch are enough to tell two elements apart.
    assert torch.linalg.det(sketch(torch.eye(2))[:, :2]).abs() == 2
    for count in (14, 64, 20_000, 1 << 17):  # a constant error does not cancel out
        assert sketch(torch.ones(1, count))[0, :2].abs().max() > 0.09 * count**0.5
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(sketch(a + b)[0, :2] / 2, mean, rtol=1e-4, atol=1e-4)
    assert sketch(torch.ones(1, 3, dtype=torch.complex64)).isfinite().all()
    for dtype in (torch.bool, torch.bfloat16, torch.int8, torch.complex64):
        assert digest(torch.ones(7, dtype=dtype)) != digest(torch.zeros(7, dtype=dtype))


def test_one_process_without_a_group_trains_under_it():
    """Without torch.distributed, only the optimizer is checked."""
    net = torch.nn.Linear(2, 1)
    with Guard(net, torch.optim.SGD(net.parameters(), 0.1)) as watch:
        for x in watch.epoch([torch.ones(1, 2)] * 3, 0):
            net(x).sum().backward()
            watch.step()
        watch.preflight(lambda m, x: m(x).mean(), torch.ones(4, 2))
        assert watch.mean(3, 4) == 0.75
    other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1)
    with pytest.raises(GuardError, match=r"does not hold weight and 1 more.*built"):
        Guard(net, other)
    with pytest.raises(ValueError, match="every=0"):
        Guard(net, every=0)


def test_the_example_on_the_page_trains(ranks):
    """Both ranks compute the same error, and the guard raises nothing."""

    def run(path):
        import runpy

        return runpy.run_path(path)["train"]()

    errors = ranks.run(run, str(EXAMPLE), timeout=60)
    assert errors[0] == errors[1] < 2


def test_the_backward_on_the_page_accumulates_and_is_the_mean(ranks):
    """It passes as it is, and raises without its division."""
    page = (ROOT / "book" / "app_guard.md").read_text("utf8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    def run(path, block):
        import contextlib
        import runpy

        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP

        from allranks.guard import Guard, GuardError

        model = DDP(torch.nn.Linear(4, 1))
        torch.manual_seed(dist.get_rank())
        names = {
            "batches": [(torch.randn(3, 4), torch.randn(3, 1)) for _ in range(2)],
            "contextlib": contextlib,
            "loss_of": runpy.run_path(path)["loss_of"],
            "model": model,
        }
        with Guard(model) as watch:
            try:
                exec(block, names | {"watch": watch})
            except GuardError as error:
                return str(error)
        return ""

    assert ranks.run(run, str(EXAMPLE), block, timeout=60) == ["", ""]
    summed = block.replace(" / len(batches)", "")
    assert summed != block
    for said in ranks.run(run, str(EXAMPLE), summed, timeout=60):
        assert "2 times the gradient" in said


def test_every_silent_case_of_the_clinic_is_caught_or_has_its_reason():
    """The guard catches more than two in three of them; tests/clinic plays those."""
    cases = clinic.folder(ROOT / "clinic")
    silent = [
        case for case in cases if case.runs and case.fields["symptom"] == "silent"
    ]
    beyond = [case.fields["beyond"] for case in silent if "guard" not in case.fields]
    assert len(beyond) < len(silent) / 3
    assert all(len(reason.split()) > 9 for reason in beyond), beyond


def test_the_folder_needs_torch_and_nothing_else():
    """A job on a cluster can import the folder without the rest of the book."""
    allowed = {"torch", *sys.stdlib_module_names}
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            else:
                continue
            for name in names:
                own = f"{name}.".startswith("allranks.guard.")
                assert own or name.partition(".")[0] in allowed, f"{file.name}: {name}"
