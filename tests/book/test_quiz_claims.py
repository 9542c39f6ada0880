"""Each quiz has a proof: its answer is run here, or computed in a second way.

``@proves`` registers the test behind a quiz with options. ``@law`` computes the answer
of a number quiz without using its formula, and the two are compared for every draw.
``BACKED`` lists the quizzes that can't be proved here, each with what backs it.
"""

import contextlib
import datetime
import io
import itertools
import os
import pickle
import re
import signal
import socket
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DataLoader, DistributedSampler

from allranks import Ranks, RanksError, vgpu
from allranks.base.paths import ROOT
from allranks.doctor.wheels import driver_runs
from allranks.topics.batches.sums import global_batch_size, steps_per_epoch
from allranks.topics.collectives.costs import cost, messages
from allranks.topics.collectives.sums import schedule
from allranks.topics.data_parallel.sums import ring_bytes, step_bytes
from allranks.topics.pipelines.schedules import stages_of, write_orders
from allranks.topics.pipelines.sums import (
    bubble,
    gpipe,
    one_f_one_b,
    peak_held,
    timetable,
)
from allranks.topics.topology.sums import (
    device_of,
    equal_nodes,
    rank_of,
    visible_devices,
)
from scripts import ch8_local_sgd, ch8_powersgd
from tests.book.quizzes import NUMBERS, QUIZZES

PROOFS, LAWS = {}, {}
BACKED = {  # by something that can't run here, or that runs elsewhere
    "ch1_utilisation": "needs a GPU; nvidia-smi's manual, as the page says",
    "ch1_what_to_install": "needs a CUDA wheel; the thread linked on the page",
    "ch1_too_late": "errata/a3_visible_devices_too_late.py",
    "ch1_bus_error": "tests/test_ch1_environment.py::"
    "test_a_worker_without_room_in_shm_raises_what_the_page_says",
    "ch4_first_failure": "tests/test_ch5_ddp.py::test_one_failing_rank_ends_all",
    "ch7_new_group": "clinic/new-group-subset.py",
    "ch6_ddp_is_not": "errata/b3_ddp_is_not_model_parallel.py",
}


def proves(name):
    """Register the proof of a quiz."""
    return lambda test: PROOFS.setdefault(name, test)


def law(name):
    """Register a second way to compute a number quiz's answer."""
    return lambda compute: LAWS.setdefault(name, compute)


@pytest.fixture(scope="module")
def two():
    """Yield two live ranks."""
    with Ranks(2) as ranks:
        yield ranks


@contextlib.contextmanager
def hang(ranks, **how):
    """Expect a hang: for one second no rank computes, however slow the machine is."""
    ranks.stall = 1.0
    with pytest.raises(RanksError, **how):
        yield
    ranks.stall = None


def test_every_quiz_is_backed():
    """Every quiz has a run, a law or a named source, and no entry is stale."""
    known = {**PROOFS, **LAWS, **BACKED}
    assert set(known) == {quiz.name for quiz in QUIZZES}
    assert len(known) == len(PROOFS) + len(LAWS) + len(BACKED)
    assert set(LAWS) == set(NUMBERS)


def test_what_backs_a_quiz_elsewhere_exists():
    """The tests and specimens that ``BACKED`` names exist under these names."""
    for source in BACKED.values():
        path, _, test = source.partition("::")
        if path.endswith(".py"):
            with open(path, encoding="utf8") as file:
                assert f"def {test}(" in file.read() or not test


@pytest.mark.parametrize("name", LAWS)
def test_law(name):
    """The quiz's formula and the law agree on every draw."""
    from book._ext.quiz.formula import evaluate

    numbers = NUMBERS[name]
    draws = numbers.draws()
    for draw in draws:
        answer = evaluate(numbers.right, draw)
        assert LAWS[name](**draw) == pytest.approx(answer, abs=1e-9), draw
    assert len(draws) >= 6


@pytest.mark.parametrize("name", PROOFS)
def test_proof(name, request):
    """The quiz's right option is what happens."""
    proof = PROOFS[name]
    names = proof.__code__.co_varnames[: proof.__code__.co_argcount]
    proof(*(request.getfixturevalue(one) for one in names))


# ---- Chapter 1


@proves("ch1_stale_variables")
def _(monkeypatch):
    """Rank 0 of 2 waits, but a busy port or a missing variable fails at once."""
    short = {"timeout": datetime.timedelta(seconds=1)}
    with pytest.raises(dist.DistStoreError, match="1/2 clients joined"):
        dist.TCPStore("127.0.0.1", 0, 2, is_master=True, **short)
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, **short)
    with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
        dist.TCPStore("127.0.0.1", store.port, 1, is_master=True, **short)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="environment variable RANK expected"):
        dist.init_process_group("gloo")


@law("ch1_renumbering")
def _(first, second):
    return visible_devices(f"{first},{second}", num_gpus=8)[1]


@proves("ch1_three_versions")
def _():
    """A driver for CUDA 12.4 runs a wheel for 12.1."""
    assert driver_runs("550.54.14", "12.4")
    assert driver_runs("550.54.14", "12.1")
    assert not driver_runs("550.54.14", "13.0")


# ---- Chapter 2


@proves("ch2_sum_or_mean")
def _():
    """PyTorch's own class on four virtual GPUs gives the undivided gradient."""
    with vgpu.plugged_in(4):
        torch.manual_seed(0)
        net, x = nn.Linear(3, 1), torch.randn(64, 3)
        net(x).square().mean().backward()
        alone = net.weight.grad.clone()
        copy = nn.Linear(3, 1)
        copy.load_state_dict(net.state_dict())
        copy.to("vgpu:0")
        nn.DataParallel(copy, [0, 1, 2, 3])(x.to("vgpu:0")).square().mean().backward()
        torch.testing.assert_close(copy.weight.grad.cpu(), alone)


@proves("ch2_test_without_gpu")
def _():
    """One call gets the whole batch, device_ids is dropped, and the keys look right."""
    seen = []
    net = nn.Linear(2, 1)
    net.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    model = nn.DataParallel(net, device_ids=[0, 3])
    model(torch.ones(10, 2))
    assert seen == [10]
    assert model.device_ids == []
    assert set(model.state_dict()) == {"module.weight", "module.bias"}


@law("ch2_share")
def _(batch, gpus):
    shares = torch.arange(batch).chunk(gpus)
    assert {len(share) for share in shares} == {len(shares[0])}
    return len(shares[0])


@law("ch2_idle_devices")
def _(batch, gpus):
    return len(torch.arange(batch).chunk(gpus))


@proves("ch2_what_survives")
def _():
    """With PyTorch's own class, only what replica 0 writes in place survives."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.number = 0
            self.register_buffer("in_place", torch.zeros(1))
            self.register_buffer("assigned", torch.zeros(1))

        def forward(self, x):
            self.number += 1
            self.in_place.add_(1)
            self.assigned = self.assigned + 1
            return x * 2

    with vgpu.plugged_in(4):
        net = Net().to("vgpu:0")
        nn.DataParallel(net, [0, 1, 2, 3])(torch.ones(8, device="vgpu:0"))
        assert (net.number, net.in_place.item(), net.assigned.item()) == (0, 1, 0)


@law("ch2_bytes")
def _(weights, gpus):
    return step_bytes(gpus, param_bytes=weights, output_bytes=0)[0][0]


@proves("ch2_more_gpus")
def _():
    """All outputs reach the first GPU, however many there are; or only their losses."""
    batch, classes = 12, 5000

    class Net(nn.Linear):
        def __init__(self, inside):
            super().__init__(2, classes)
            self.inside = inside

        def forward(self, x, y):
            output = super().forward(x)
            return nn.functional.cross_entropy(output, y) if self.inside else output

    def gathered(num_gpus, inside):
        net = Net(inside).to("vgpu:0")
        x = torch.ones(batch, 2, device="vgpu:0")
        y = torch.zeros(batch, dtype=torch.long, device="vgpu:0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns when it gathers scalars
            return nn.DataParallel(net, list(range(num_gpus)))(x, y).numel()

    with vgpu.plugged_in(3):
        assert gathered(2, False) == gathered(3, False) == batch * classes
        assert gathered(2, True) == 2


@law("ch2_batch_for_ddp")
def _(batch, gpus):
    found = [b for b in range(1, batch + 1) if global_batch_size(b, gpus) == batch]
    return found[0]


# ---- Chapter 3


@proves("ch3_prefix")
def _():
    """Loading keys with a prefix gives this message, and stripping it repairs that."""
    wrapped = nn.DataParallel(nn.Sequential(nn.Linear(2, 1))).state_dict()
    net = nn.Sequential(nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*module\.0\.weight"):
        net.load_state_dict(wrapped)
    consume_prefix_in_state_dict_if_present(wrapped, "module.")
    net.load_state_dict(wrapped)


@proves("ch3_strict")
def _():
    """With strict=False nothing is loaded, but a wrong shape is still an error."""
    wrapped = nn.DataParallel(nn.Linear(2, 1)).state_dict()
    net = nn.Linear(2, 1)
    before = net.weight.clone()
    answer = net.load_state_dict(wrapped, strict=False)
    assert answer.missing_keys == ["weight", "bias"]
    assert torch.equal(net.weight, before)
    with pytest.raises(RuntimeError, match="size mismatch"):
        nn.Linear(3, 1).load_state_dict(net.state_dict(), strict=False)


@proves("ch3_fresh_adam")
def _():
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


@law("ch3_next_epoch")
def _(last, total):
    done = list(range(last + 1))
    return next(
        s for s in range(total) if done + list(range(s, total)) == [*range(total)]
    )


@proves("ch3_who_saves")
def _():
    """One rank per machine has local rank 0, but only one of all has rank 0."""
    nodes = equal_nodes(2, 4)
    ranks = [(rank_of(nodes, n, i), i) for n in range(2) for i in range(4)]
    assert sum(local_rank == 0 for _, local_rank in ranks) == 2
    assert sum(rank == 0 for rank, _ in ranks) == 1


@proves("ch3_barrier")
def _(two, tmp_path):
    """After the barrier all read the new file; inside the if, it hangs rank 0."""

    def save(folder, inside):
        import os
        import time

        import torch.distributed as dist

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


@proves("ch3_unpickling")
def _(tmp_path):
    """The check refuses the call; without it the call runs, map_location or not."""
    file, sign = tmp_path / "model.pt", tmp_path / "ran"
    torch.save(Trap(str(sign)), file)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file)
    assert not sign.exists()
    torch.load(file, weights_only=False, map_location="cpu")
    assert sign.exists()


@proves("ch3_map_location")
def _():
    """A tensor loads onto the device that the file names, not onto the default one."""
    with vgpu.plugged_in(2):
        file = io.BytesIO()
        torch.save(torch.ones(1, device="vgpu:0"), file)
        file.seek(0)
        with torch.device("vgpu:1"):
            assert str(torch.load(file).device) == "vgpu:0"
        file.seek(0)
        assert str(torch.load(file, map_location="cpu").device) == "cpu"


# ---- Chapter 4


@law("ch4_rank")
def _(nodes, gpus, node, local):
    return rank_of(equal_nodes(nodes, gpus), node, local)


@proves("ch4_device")
def _():
    """Local ranks 0 to 3 are the four GPUs of a machine; a 4 is no device there."""
    gpus = visible_devices(None, num_gpus=4)
    assert [device_of(local_rank, gpus) for local_rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="is 4"):
        device_of(4, gpus)


@proves("ch4_rank_or_local")
def _():
    """If samplers get the local rank, two machines read the same half of the data."""

    def read(place):
        samplers = [
            DistributedSampler(range(80), 8, rank=place(node, local), shuffle=False)
            for node in range(2)
            for local in range(4)
        ]
        return {index for sampler in samplers for index in sampler}

    assert len(read(lambda node, local: node * 4 + local)) == 80
    assert len(read(lambda node, local: local)) == 40


@proves("ch4_visible")
def _():
    """The list of visible devices ends at −1, and naming a GPU twice hides them all."""
    assert visible_devices("0,2,-1,1", num_gpus=4) == [0, 2]
    assert visible_devices("1,1", num_gpus=4) == []


@proves("ch4_backend")
def _():
    """PyTorch itself names gloo for the CPU and NCCL for CUDA."""
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    assert dist.get_default_backend_for_device("cuda") == "nccl"


def rendezvous(*flags):
    """Return the rendezvous handler that torchrun would use with these flags."""
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    config, *_ = run.config_from_args(run.parse_args([*flags, "train.py"]))
    return get_rendezvous_handler(
        RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            **config.rdzv_configs,
        )
    )


C10D = "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ([*C10D, "--rdzv-conf=is_host=1"], 600),
        ([*C10D, "--rdzv-conf=is_host=1,timeout=60"], 600),
        ([*C10D, "--rdzv-conf=is_host=1,join_timeout=60"], 60),
        (["--master-port=29500"], 900),
        (["--master-port=29500", "--rdzv-conf=timeout=60"], 60),
        (["--master-port=29500", "--rdzv-conf=join_timeout=60"], 900),
    ],
)
def test_each_rendezvous_has_a_limit_of_its_own_name(flags, seconds):
    """c10d reads join_timeout, static reads timeout; both ignore the other's option.

    Source: create_handler in torch.distributed.elastic.rendezvous.dynamic_rendezvous
    and create_rdzv_handler in static_tcp_rendezvous; torch.distributed.launcher.api's
    LaunchConfig sets timeout to 900 if the user doesn't set it.
    """
    handler = rendezvous("--nnodes=2", *flags)
    static = handler.get_backend() == "static"
    limit = handler.timeout if static else handler._settings.timeout.join
    assert limit == datetime.timedelta(seconds=seconds)


def test_no_page_gives_c10d_the_limit_of_a_static_rendezvous():
    """A line that gives ``timeout=`` on its own says that it is for static."""
    lines = "\n".join(p.read_text("utf8") for p in ROOT.glob("book/*.md")).splitlines()
    found = [line for line in lines if re.search(r"rdzv-conf \S*timeout=", line)]
    bare = re.compile(r"[\s`,]timeout=")
    assert found and not [x for x in found if bare.search(x) and "static" not in x]


@proves("ch4_rdzv_count")
def _():
    """The static rendezvous of the command gives up before any rank is started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    how = "--nnodes=2", "--nproc-per-node=4", f"--master-port={port}"
    handler = rendezvous(*how, "--rdzv-conf=timeout=1")
    assert handler.get_backend() == "static"
    with pytest.raises(dist.DistStoreError, match="1/2 clients joined"):
        handler.next_rendezvous()


@law("ch4_all_reduce")
def _(ranks):
    return sum(rank + 1 for rank in range(ranks))


def test_all_reduce_is_the_sum_of_the_law(two):
    """Two live ranks compute the same sum as the law."""
    code = "x = torch.tensor([rank + 1.0]); dist.all_reduce(x); x.item()"
    assert two.run(code) == [LAWS["ch4_all_reduce"](2)] * 2


@proves("ch4_skipped_collective")
def _(two):
    """Rank 0 waits in its collective, while rank 1 has finished."""
    with hang(two, match="rank 1 finished"):
        two.run("if rank == 0: dist.all_reduce(torch.ones(1))", timeout=60)


def test_minus_fifteen_is_sigterm():
    """Exit code -15, which torchrun reports for the ranks that it ended, is SIGTERM."""
    assert signal.SIGTERM == 15


@law("ch4_global_batch")
def _(nodes, gpus, batch):
    return global_batch_size(batch, sum(equal_nodes(nodes, gpus)))


@law("ch4_steps")
def _(samples, ranks, batch):
    assert steps_per_epoch(samples, batch, ranks) == len(
        DataLoader(range(samples), batch, sampler=sampler(samples, ranks))
    )
    return steps_per_epoch(samples, batch, ranks)


@law("ch4_mean_of_means")
def _(many, few, low, high):
    losses = torch.cat([torch.full((many,), low), torch.full((few,), high)])
    return losses.double().mean().item()


# ---- Chapter 5


def sampler(num_samples, num_ranks, rank=0, **options):
    """Return a sampler that needs no process group."""
    return DistributedSampler(range(num_samples), num_ranks, rank, **options)


def ddp_grads(how):
    """On a live rank, return what each of two backward passes does to the gradient.

    The net has one weight, and its gradient on each rank is rank + 1.
    """
    import contextlib

    import torch
    from torch import nn

    rank = torch.distributed.get_rank()
    net = nn.Linear(1, 1, bias=False)
    ddp = nn.parallel.DistributedDataParallel(net)
    x, found = torch.full((1, 1), rank + 1.0), []
    if how == "module":
        ddp.module(x).sum().backward()
        return [net.weight.grad.item()]
    for i in range(2):
        last = i == 1
        outer = contextlib.nullcontext() if last or how != "both" else ddp.no_sync()
        with outer:
            output = ddp(x)
            inner = contextlib.nullcontext() if last or not how else ddp.no_sync()
            with inner:
                before = net.weight.grad is None
                output.sum().backward()
        found += [before, net.weight.grad.item()]
    before = net.weight.detach().clone()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    return [*found, torch.allclose(net.weight, before - net.weight.grad)]


@proves("ch5_who_averages")
def _(two):
    """The gradient is averaged by backward, and step() takes it as it is."""
    assert two.run(ddp_grads, "") == [[True, 1.5, False, 3.0, True]] * 2


@law("ch5_average")
def _(first, second):
    return torch.tensor([first, second]).double().mean().item()


@proves("ch5_module_bypass")
def _(two):
    """Each rank keeps its own gradient, without an error."""
    assert two.run(ddp_grads, "module") == [[1.0], [2.0]]


@proves("ch5_no_sync")
def _(two):
    """no_sync around backward alone still averages; around both, the last pass does."""
    backward_only = two.run(ddp_grads, "backward")
    assert [found[1] for found in backward_only] == [1.5, 1.5]
    both = two.run(ddp_grads, "both")
    assert [found[1] for found in both] == [1.0, 2.0]
    assert [found[3] for found in both] == [3.0, 3.0]


@proves("ch5_uneven")
def _(two):
    """Rank 0 makes one backward pass more than rank 1, so it waits."""

    def train():
        import torch
        from torch import nn

        ddp = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        for _ in range(3 - torch.distributed.get_rank()):
            ddp(torch.ones(1, 1)).sum().backward()

    with hang(two, match="rank 1 finished"):
        two.run(train, timeout=60)


@proves("ch5_no_sampler")
def _():
    """Without a sampler each rank gets all batches; with one, only its share."""
    data = range(1000)
    assert len(DataLoader(data, 10, shuffle=True)) == 100
    assert len(DataLoader(data, 10, sampler=sampler(1000, 4))) == 25


@proves("ch5_set_epoch")
def _():
    """Shares are disjoint and shuffled, and the same each epoch until set_epoch()."""
    samplers = [sampler(40, 4, rank) for rank in range(4)]
    first = [list(one) for one in samplers]
    assert sorted(itertools.chain(*first)) == list(range(40))
    assert first[0] != sorted(first[0])
    assert [list(one) for one in samplers] == first
    samplers[0].set_epoch(1)
    assert list(samplers[0]) != first[0]


@law("ch5_padding")
def _(samples, ranks):
    options = {"shuffle": False}
    return sum(len(list(sampler(samples, ranks, r, **options))) for r in range(ranks))


@proves("ch5_rank_zero_only")
def _(two):
    """ddp.module works on one rank; DDP's forward needs all of them, even in eval.

    If only rank 0 calls set_epoch(), the ranks' shares overlap.
    """

    def alone(evaluate):
        import torch
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        ddp, x = nn.parallel.DistributedDataParallel(net), torch.ones(4, 2)
        ddp(x).sum().backward()
        if torch.distributed.get_rank() == 0:
            ddp.module.state_dict()
            ddp.module(x)
            if evaluate:
                with torch.no_grad():
                    ddp.eval()(x)
        return True

    assert two.run(alone, False, timeout=30) == [True, True]
    with hang(two, match="rank 1 finished"):
        two.run(alone, True, timeout=60)
    ranks = [sampler(100, 2, rank) for rank in range(2)]
    ranks[0].set_epoch(1)
    assert set(ranks[0]) & set(ranks[1])


def test_buffers_are_sent_after_a_forward_that_synchronises(two):
    """DDP broadcasts buffers in the forward after a synchronising one, also in eval.

    The broadcasts are counted where DDP calls torch; the page's table says the same.
    Source: torch.nn.parallel.distributed, require_forward_param_sync.
    """

    def count():
        import contextlib
        from unittest import mock

        import torch
        import torch.distributed as dist
        from torch import nn

        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        ddp, x, counts = nn.parallel.DistributedDataParallel(net), torch.ones(4, 2), []
        real = dist._broadcast_coalesced
        for how in ("step", "no_sync", "no_sync", "step", "eval", "eval", "step"):
            ddp.train(how != "eval")
            modes = {"step": contextlib.nullcontext, "eval": torch.no_grad}
            sent = mock.patch.object(dist, "_broadcast_coalesced", wraps=real)
            with sent as sent, modes.get(how, ddp.no_sync)():
                loss = ddp(x).sum()
                if how != "eval":
                    loss.backward()
            counts.append(sent.call_count)
        return counts

    assert two.run(count) == [[1, 1, 0, 0, 1, 0, 0]] * 2


def test_the_second_forward_sends_the_order_of_gradients(two):
    """Without buffers, only the second training pass's forward sends: an order."""

    def count():
        import torch
        from torch import nn

        ddp, counts = nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), []
        for _ in range(4):
            with torch.profiler.profile() as profile:
                loss = ddp(torch.ones(1, 2)).sum()
            counts.append(sum("gloo:" in e.name for e in profile.events()) > 0)
            loss.backward()
        return counts

    assert two.run(count) == [[False, True, False, False]] * 2


@pytest.mark.parametrize("layer", range(4))
def test_a_replaced_parameter_keeps_all_gradients_local(two, layer):
    """DDP copies no average back before all buckets are there, in whichever it is."""

    def own(layer):
        import torch
        import torch.distributed as dist
        from torch import nn

        net = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(4)])
        one_layer = 8 * 8 * 4 / 2**20  # a bucket for each
        ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=one_layer)
        x = torch.full((1, 8), dist.get_rank() + 1.0)
        for _ in range(2):  # the second one rebuilds the buckets
            ddp(x).sum().backward()
        ddp.zero_grad()
        if layer is not None:
            net[layer].weight = nn.Parameter(torch.ones(8, 8))
        ddp(x).sum().backward()
        theirs = [None] * 2
        dist.all_gather_object(theirs, [p.grad for p in net.parameters()])
        return [not torch.equal(a, b) for a, b in zip(*theirs, strict=True)]

    assert two.run(own, None) == [[False] * 4] * 2
    assert two.run(own, layer) == [[True] * 4] * 2


def test_dropout_makes_w_ranks_another_training_than_one(two):
    """W ranks differ from one with dropout, whatever the seeds, but not without it."""

    def distance(dropout, spread):
        import copy

        import torch
        import torch.distributed as dist
        from torch import nn

        def train(net, x, y):
            torch.manual_seed(spread * dist.get_rank())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(20):
                optimizer.zero_grad()
                nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
            return nn.utils.parameters_to_vector(net.parameters())

        torch.manual_seed(0)
        layers = nn.Linear(8, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 1)
        net, data = nn.Sequential(*layers), [torch.randn(32, 8), torch.randn(32, 1)]
        one = train(copy.deepcopy(net), *data)
        ddp = nn.parallel.DistributedDataParallel(net)
        many = train(ddp, *[part[dist.get_rank() :: 2] for part in data])
        return (one - many).abs().max().item()

    for spread in (0, 1):
        assert two.run(distance, 0.0, spread)[0] < 1e-6
        assert two.run(distance, 0.5, spread)[0] > 0.05


def test_the_optimizer_may_be_made_before_the_wrap_or_after(two):
    """DDP writes into the existing parameters: the same objects, and the same bits."""

    def train(wrap_first):
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        torch.manual_seed(torch.distributed.get_rank())
        net = nn.Linear(4, 4)
        ddp = DDP(net) if wrap_first else None
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        ddp = ddp or DDP(net)
        torch.manual_seed(2)
        for x in torch.randn(3, 2, 4, 4)[:, torch.distributed.get_rank()]:
            optimizer.zero_grad()
            ddp(x).square().sum().backward()
            optimizer.step()
        held = optimizer.param_groups[0]["params"]
        assert all(a is b for a, b in zip(held, ddp.parameters(), strict=True))
        return net.weight.detach()

    first, second = two.run(train, True), two.run(train, False)
    assert all(torch.equal(weight, first[0]) for weight in [*first, *second])


def test_bits_depend_on_threads_and_torchrun_sets_them_for_several_ranks(monkeypatch):
    """Another number of threads gives other bits; torchrun sets one for several ranks.

    Source: torch.distributed.run, config_from_args.
    """
    from torch.distributed import run

    from scripts import ch5_single

    torch.manual_seed(0)
    data, _, net = ch5_single.make_task(96)
    x, y = data[:]
    gradients, threads = [], torch.get_num_threads()
    try:
        for count in (1, 1, 2):
            torch.set_num_threads(count)
            net.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            gradients.append(
                nn.utils.parameters_to_vector(p.grad for p in net.parameters())
            )
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[0], gradients[2])

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = []
    for count in (1, 2):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        run.config_from_args(run.parse_args([f"--nproc-per-node={count}", "x.py"]))
        found.append(os.environ.get("OMP_NUM_THREADS"))
    assert found == [None, "1"]


def test_restarted_ranks_meet_in_a_store_of_their_own_with_the_variable(monkeypatch):
    """Without the variable all attempts share the launcher's store and gloo's keys.

    ``_create_c10d_store`` in torch.distributed.rendezvous adds no prefix per attempt to
    the agent's store, because it relies on a new store for each attempt.
    """
    shared = []
    for value in ("0", "1"):
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value)
        handler = rendezvous("--nnodes=1", *C10D, "--rdzv-conf=is_host=1")
        shared.append(handler.use_agent_store)
    assert shared == [True, False]
    page = (ROOT / "book" / "ch5_ddp.md").read_text("utf8")
    assert "--max-restarts" in page and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in page


@proves("ch5_pays")
def _():
    """A rank's traffic follows the gradients' size and grows with the world size."""
    assert ring_bytes(2, 100) < ring_bytes(4, 100) < ring_bytes(8, 100) < 200
    assert ring_bytes(4, 50) == ring_bytes(4, 100) / 2


# ---- Chapter 6


def makespan(orders):
    """Return the time at which the last piece of work ends."""
    return max(work.end for work in timetable(orders))


@law("ch7_steps")
def _(ranks):
    return len(schedule("all_reduce", "ring", ranks))


@law("ch7_bus")
def _(ranks, size, time):
    sent = cost("all_reduce", "ring", ranks).share * size
    return sent / (time / 1000)


@proves("ch7_bits")
def _(two):
    source = """
from scripts import ch7_collectives as ch7
group = dist.group.WORLD
x = torch.randn(9, 999, generator=torch.Generator().manual_seed(rank))
one, other = x[:, :99].sum(0), sum(x[:, :99].flip(0))
by_ring = one.clone()
ch7.ring(by_ring)
both = [torch.empty_like(by_ring) for _ in range(2)]
dist.all_gather(both, by_ring)
torch.equal(one, other), torch.equal(*both)
"""
    assert two.run(source, quiet=True) == [(False, True)] * 2


@proves("ch7_slowest")
def _():
    plan = messages(schedule("all_reduce", "ring", 8), [1000] * 8)

    def took(speed):  # of the link from rank 3 to rank 4; the others have 10
        return sum(
            max(m[4] / (speed if m[:2] == (3, 4) else 10) for m in step)
            for step in plan
        )

    assert took(1) == pytest.approx(10 * took(10))


@proves("ch8_order")
def _(two):
    """Calls meet in their order, whatever the tensors are for."""
    source = """
a, b = torch.ones(3), torch.full((3,), 10.0)
for x in (a, b) if rank == 0 else (b, a):
    dist.all_reduce(x)
a[0].item(), b[0].item()
"""
    assert two.run(source, quiet=True) == [(11, 11)] * 2


@proves("ch8_unused")
def _(two):
    source = """
from torch import nn
from scripts.ch8_ddp_by_hand import DDP
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.layer = map(nn.Parameter, torch.ones(2))
    def forward(self, used):
        return self.trunk + (6 * self.layer if used else 0)
model = DDP(Net())
model(rank == 0).backward()
model.module.layer.grad.item()
"""
    assert two.run(source, quiet=True) == [3, 3]


@proves("ch8_join")
def _(two):
    """Weights are equal after a Join, and momenta are not."""
    source = """
from torch import nn
from torch.distributed.algorithms.join import Join
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
with Join([model]):
    for _ in range(1 + 10 * rank):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).square().sum().backward()
        optimizer.step()
momenta = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
mine = torch.stack([t.detach().flatten()[0] for t in (*model.parameters(), *momenta)])
both = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(both, mine)
(both[0] == both[1]).tolist()
"""
    assert two.run(source, quiet=True) == [[True, True, False, False]] * 2


@proves("ch8_feedback")
def _(two):
    """The small number is never sent; with feedback it is."""
    source = """
from scripts.ch8_compress import TopK
def total(feedback):
    hook, x = TopK(0.01, feedback), torch.ones(100)
    x[:5] = 20
    return sum(hook.mean(x.clone(), [x])[99].item() for _ in range(1000))
total(False), total(True) > 0
"""
    assert two.run(source, quiet=True) == [(0, True)] * 2


@proves("ch8_unused_op")
def _(two):
    """Rank 1's graph is without the call; rank 0's, and what runs eagerly, have it."""
    source = """
from scripts.ch8_custom_op import all_gather
def forward(x):
    rows = all_gather(x)
    return rows.sum() if rank == 0 else x.sum()
eagerly = forward(torch.ones(3)).item()
torch._dynamo.reset()
graphs = []
from torch._dynamo.backends.common import aot_autograd
def note(graph, _):
    graphs.append(str(graph.graph))
    raise NotImplementedError("traced, but not to be run: rank 0 would wait")
try:
    torch.compile(forward, backend=aot_autograd(fw_compiler=note))(torch.ones(3))
except Exception as error:
    assert "not to be run" in str(error)
eagerly, "by_hand.all_gather" in graphs[0]
"""
    assert two.run(source, quiet=True) == [(6, True), (3, False)]


def alone(monkeypatch):
    """Let collectives of one process do nothing."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_reduce", lambda *_: None)


@law("ch8_powersgd_numbers")
def _(rows, columns, rank):
    hook = ch8_powersgd.PowerSGD(rank)
    with pytest.MonkeyPatch.context() as patch:
        alone(patch)
        hook.mean(torch.randn(rows * columns), [torch.zeros(rows, columns)])
    return hook.num_bytes / 4


@law("ch8_bytes_per_token")
def _(millions, tokens, every):
    """A model of as many numbers as the question's has millions."""
    net = nn.Linear(millions, 1, bias=False)
    outer = ch8_local_sgd.Outer(net, 0.7, 0.9)
    with pytest.MonkeyPatch.context() as patch:
        alone(patch)
        for step in range(2 * every):
            if (step + 1) % every == 0:
                outer.step()
    return 1e6 * outer.num_bytes / (2 * every * tokens)


@law("ch8_replicated_loss")
def _(ranks):
    """All ranks in one process, whose loss is the sum of theirs."""
    xs = [torch.ones((), requires_grad=True) for _ in range(ranks)]
    losses = [sum(xs) for _ in range(ranks)]
    sum(losses).backward()
    return xs[0].grad.item()


@law("ch9_step")
def _(load, workers, compute):
    """Play the queue, event by event, and look at its later half."""
    free, now, times = [0.0] * workers, 0.0, []
    for step in range(400):
        free[step % workers] += load
        now = max(now, free[step % workers])  # next() has waited for it
        times.append(now)
        now += compute
    span = 24 * workers  # whole turns of all workers
    return (times[-1] - times[-1 - span]) / span


@law("ch9_mean")
def _(short, long, high, low):
    losses = [high] * short + [low] * long
    return sum(losses) / len(losses)


@proves("ch9_generator")
def _():
    """Two workers, two epochs: each draws its own rank's first numbers, again."""
    from scripts import ch9_seeds

    args = ch9_seeds.parse_args(["--samples=8"])
    ranks = []
    for seed in (0, 1):  # two ranks, whose generators have another seed
        args.seed = seed
        drawn = ch9_seeds.read_all(args, "own generator", 0, 1, workers=2)
        first, second = ([drawn[e, i] for i in range(8)] for e in (0, 1))
        assert first == second and first[::2] == first[1::2]
        assert len(set(first)) == 4
        ranks.append(set(first))
    assert ranks[0].isdisjoint(ranks[1])


@proves("ch9_ahead")
def _():
    given = []

    class Counting(torch.utils.data.Sampler):
        def __iter__(self):
            for i in range(100):
                given.append(i)
                yield i

    loader = DataLoader(range(100), sampler=Counting(), num_workers=2)
    batches = iter(loader)
    assert loader.prefetch_factor == 2
    assert [next(batches).item() for _ in range(10)] == list(range(10))
    assert len(given) == 14


@proves("ch9_lanes")
def _():
    """Four readers begin, and six go on, of which four have one lane."""
    from scripts import ch9_data

    def read(readers, done):
        data, lanes = torch.arange(400)[:, None], ch9_data.deal(400, 8, "key")
        every = [
            ch9_data.Stream(data, lanes, "key", 7, (reader, readers), done)
            for reader in range(readers)
        ]
        both = zip(*every, strict=True)
        return [sorted(torch.cat(parts).flatten().tolist()) for parts in both]

    whole = read(4, 0)
    assert len(whole) > 6 and sorted(itertools.chain(*whole)) == [*range(400)]
    assert read(6, 3) == whole[3:]


@proves("ch9_join")
def _(two):
    source = """
model = nn.Linear(1, 1, bias=False)
ddp = nn.parallel.DistributedDataParallel(model)
seen = []
with ddp.join():
    for _ in range(1 + rank):
        ddp(torch.ones(1, 1)).mul(8).sum().backward()
        seen.append(model.weight.grad.item())
        model.weight.grad = None
import gc
del ddp
gc.collect()
seen
"""
    two.run("from torch import nn", quiet=True)
    assert two.run(source, quiet=True) == [[8.0], [8.0, 4.0]]


@proves("ch9_balance")
def _():
    """Four ranks have a piece of work each, and the script counts."""
    source = """
from scripts import ch9_balance

ch9_balance.split = lambda work, speeds, way: [[0], [1], [2], [3]]
ch9_balance.busy([[10.0, 8.0, 8.0, 6.0]], [1.0] * 4, "", "cpu")
"""
    with Ranks(4) as ranks:
        assert ranks.run(source, quiet=True) == [0.8] * 4


@proves("ch9_tar")
def _(tmp_path):
    import tarfile

    from scripts import ch9_shards

    path = tmp_path / "x.tar"
    ch9_shards.write_tar(str(path), [b"x" * 500] * 40)
    data = path.read_bytes()
    path.write_bytes(data[: 2048 * 20 + 300])  # a sample has four blocks of 512
    assert len(list(ch9_shards.read_tar(str(path)))) == 20
    path.write_bytes(data[: 2048 * 20 + 700])
    with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
        list(ch9_shards.read_tar(str(path)))


@law("ch10_moves")
def _(weight, ratio):
    exact = torch.tensor(float(weight))
    stored = exact.bfloat16()
    after = torch.nextafter(stored, torch.tensor(torch.inf).bfloat16())
    step = (after - stored) / ratio
    for count in itertools.count(1):
        exact += step.float()
        if exact.bfloat16() != stored:
            return count


@proves("ch10_random")
def _(two):
    told = """
from scripts.ch10_precision import at_random

def drifted(seed):
    draw, weight = torch.Generator().manual_seed(seed), torch.ones(64)
    for _ in range(20):
        dist.all_reduce(step := torch.full((64,), 0.001 * rank), dist.ReduceOp.AVG)
        weight = at_random(weight - step, draw).float()
    low, high = weight.clone(), weight.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return not torch.equal(low, high)

drifted(rank), drifted(7)
"""
    assert two.run(told, quiet=True) == [(True, False)] * 2
    told = """
from scripts.ch10_precision import keep

def kept(way):
    stored, exact = torch.ones(64).bfloat16(), torch.ones(64)
    for _ in range(20):
        before = exact.clone()
        dist.all_reduce(step := torch.full((64,), 0.001 * rank), dist.ReduceOp.AVG)
        exact -= step
        keep(way, stored, before, exact, None)  # nothing to draw from
    low, high = stored.clone(), stored.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high) and not (stored == 1).any().item()

kept("bf16 + master"), kept("bf16 + Kahan")
"""
    assert two.run(told, quiet=True) == [(True, True)] * 2


@proves("ch10_skip")
def _():
    told = """
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
before = net.module.weight.item()
x = torch.tensor([[float("inf") if rank == 2 else 1.0]])
scaler.scale(net(x).sum()).backward()
scaler.step(optimizer)
scaler.update()
net.module.weight.item() == before, scaler.get_scale()
"""
    with Ranks(4) as ranks:
        assert ranks.run(told, quiet=True) == [(True, 2.0)] * 4


@proves("ch10_ones")
def _():
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    for _ in range(63):
        total += torch.ones((), dtype=torch.bfloat16)
    assert total.item() == 256
    assert torch.tensor(319.0).bfloat16().item() == 320  # one rounding, at the end


@law("ch10_tokens")
def _(few, many, a, b):
    losses = torch.cat([torch.full((few,), float(a)), torch.full((many,), float(b))])
    return losses.double().mean().item()


@law("ch10_norm")
def _(first, second):
    shards = torch.zeros(4, dtype=torch.double), torch.ones(9, dtype=torch.double)
    shards[0][1], shards[1][:] = first, second / 3
    assert shards[1].norm().item() == pytest.approx(second)
    return torch.cat(shards).norm().item()


@law("ch10_noise")
def _(noise, signal, batch):
    from scripts.ch10_batch import noise_scale

    trace, length = noise_scale(signal + noise, signal + noise / 2, batch, 2)
    return trace / length


@proves("ch6_naive_split")
def _():
    """Two halves without micro-batches take as long as the whole."""
    whole = max(work.end for work in timetable(gpipe(1, 1), forward=2, backward=4))
    assert makespan(gpipe(2, 1)) == whole


@proves("ch6_cpu_devices")
def _():
    """All CPUs are one device."""
    net = nn.Linear(2, 2).to("cpu:1")
    assert net(torch.ones(1, 2, device="cpu:0")).device == torch.device("cpu")


@law("ch6_bubble")
def _(stages, batches):
    work = timetable(gpipe(stages, batches))
    busy = sum(piece.end - piece.start for piece in work if piece.rank == 0)
    idle = 100 * (1 - busy / max(piece.end for piece in work))
    assert idle == pytest.approx(100 * bubble(stages, batches))
    return idle


@proves("ch6_size_or_number")
def _():
    """The percentages in the answer are the bubble's."""
    assert round(100 * bubble(4, 8)) == 27
    assert round(100 * bubble(4, 4)) == 43


@law("ch6_held")
def _(stages, batches):
    assert peak_held(gpipe(stages, batches)[0]) == batches
    assert peak_held(one_f_one_b(stages, batches)[-1]) == 1
    return peak_held(one_f_one_b(stages, batches)[0])


@law("ch6_ddp_devices")
def _(rank):
    pairs = torch.arange(2 * (rank + 1)).chunk(rank + 1)
    return pairs[rank][1].item()


@proves("ch6_column_row")
def _():
    """A split by outputs, then by inputs, gives summands that are added once."""
    torch.manual_seed(0)
    x, first, second = torch.randn(5, 3), torch.randn(8, 3), torch.randn(2, 8)
    whole = torch.relu(x @ first.T) @ second.T
    shares = zip(first.chunk(4, dim=0), second.chunk(4, dim=1), strict=True)
    summands = [torch.relu(x @ a.T) @ b.T for a, b in shares]
    torch.testing.assert_close(sum(summands), whole)
    assert not torch.allclose(summands[0], whole)


# ---- What chapter 6 says about zero-bubble schedules


def own_idle(works, rank):
    """Return a rank's idle time between its own first and last piece of work."""
    mine = [work for work in works if work.rank == rank]
    span = max(work.end for work in mine) - min(work.start for work in mine)
    return span - sum(work.end - work.start for work in mine)


def test_the_pages_linear_layer_is_torchs():
    """The two halves of a backward pass on the page agree with autograd."""
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [3.0, 1.0]], requires_grad=True)
    dy = torch.tensor([[1.0, 1.0]])
    dx, dw = torch.autograd.grad(nn.functional.linear(x, weight), (x, weight), dy)
    assert dx.tolist() == [[4.0, 1.0]] == (dy @ weight).tolist()
    assert dw.tolist() == [[1.0, 2.0], [1.0, 2.0]] == (dy.T @ x).tolist()
    page = (ROOT / "book" / "ch6_model_parallel.md").read_text("utf8")
    assert "= (4, 1)" in page and "the rows 1 · (1, 2) and 1 · (1, 2)" in page


@pytest.mark.parametrize("name", ["1F1B", "InterleavedZeroBubble"])
def test_the_pages_table_of_what_ranks_hold(name):
    """The table holds the peaks of the orders, which other tests compare with torch."""
    page = (ROOT / "book" / "ch6_model_parallel.md").read_text("utf8")
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", page, re.MULTILINE)
    held = [peak_held(order) for order in write_orders(name, 4, 8)]
    assert [int(cell) for cell in row.split("|")] == held


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zero_bubble_schedules_keep_what_the_page_promises(ranks):
    """A third of the bubble remains, and no rank holds more than with 1F1B.

    Rank r puts off the weights' part of at most r micro-batches.
    Source: Qi et al., 2023, sections 2.1 (ZB-H1) and 6 (ZBV).
    """
    count = 2 * ranks
    name, plain = "InterleavedZeroBubble", write_orders("1F1B", ranks, count)
    split = write_orders(name, ranks, count)
    idle = [makespan(orders) - 3 * count for orders in (plain, split)]
    assert idle == [3 * (ranks - 1), ranks - 1]
    for rank, order in enumerate(split):
        owed = itertools.accumulate({"I": 1, "W": -1}.get(x[0], 0) for x in order)
        # Just before a W, its own micro-batch still counts among those put off.
        assert max(owed) == rank + 1
    assert {peak_held(order) for order in split} == {peak_held(plain[0])} == {ranks}

    for enough in (2 * ranks - 1, count, 3 * ranks):
        orders = write_orders("ZBVZeroBubble", ranks, enough)
        works = timetable(orders, forward=1, backward=2, weight=1)
        assert [own_idle(works, rank) for rank in range(ranks)] == [0] * ranks
        assert {peak_held(order) for order in orders} <= {2 * ranks, 2 * ranks - 1}
    few = timetable(write_orders("ZBVZeroBubble", ranks, 2 * ranks - 2))
    assert any(own_idle(few, rank) for rank in range(ranks))
    place = {
        s: r for r, own in enumerate(stages_of("ZBVZeroBubble", ranks, 2)) for s in own
    }
    hops = [place[s] != place[s + 1] for s in range(2 * ranks - 1)]
    assert sum(hops) == 2 * (ranks - 1)
