"""What backs the quizzes of chapter 5."""

import contextlib
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from allranks.base.paths import ROOT
from allranks.topics.data_parallel.sums import ring_bytes
from tests.quiz.proofs import C10D, hang, law, rendezvous


def sampler(num_samples, num_ranks, rank=0):
    """Return a sampler that needs no process group."""
    return DistributedSampler(range(num_samples), num_ranks, rank)


@law
def test_ch5_average(first, second):
    return torch.tensor([first, second]).double().mean().item()


def test_backward_averages_and_step_sends_nothing(two):
    """The gradient is averaged by backward, and step() takes it as it is."""

    def step():
        import torch
        from torch import nn

        net = nn.Linear(1, 1, bias=False)
        ddp = nn.parallel.DistributedDataParallel(net)
        output = ddp(torch.full((1, 1), dist.get_rank() + 1.0))
        before, unset = net.weight.detach().clone(), net.weight.grad is None
        output.sum().backward()
        gradient = net.weight.grad.item()
        torch.optim.SGD(net.parameters(), lr=1.0).step()
        stepped = torch.allclose(net.weight, before - net.weight.grad)
        return [unset, gradient, stepped]

    assert two.run(step) == [[True, 1.5, True]] * 2


def test_ch5_uneven(two):
    """Rank 0 makes one backward pass more than rank 1, so it waits."""

    def train():
        import torch
        from torch import nn

        ddp = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        for _ in range(3 - torch.distributed.get_rank()):
            ddp(torch.ones(1, 1)).sum().backward()

    with hang(two, match="rank 1 finished"):
        two.run(train, timeout=60)


def test_ch5_no_sampler():
    """Without a sampler each rank gets all batches; with one, only its share."""
    data = range(1000)
    assert len(DataLoader(data, 10, shuffle=True)) == 100
    assert len(DataLoader(data, 10, sampler=sampler(1000, 4))) == 25


def test_ch5_rank_zero_only(two):
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


def test_buffers_are_sent_after_a_forward_that_synchronizes(two):
    """DDP broadcasts buffers in the forward after a synchronizing one, also in eval.

    The broadcasts are counted where DDP calls torch; the page's table says the same.
    Source: torch.nn.parallel.distributed, require_forward_param_sync.
    """

    def count():
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


def test_ch5_pays():
    """A rank's traffic follows the gradients' size and grows with the world size."""
    assert ring_bytes(2, 100) < ring_bytes(4, 100) < ring_bytes(8, 100) < 200
    assert ring_bytes(4, 50) == ring_bytes(4, 100) / 2
