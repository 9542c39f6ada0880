"""The guard stays silent in trainings that are right, written as people write them."""

import contextlib
import copy
import functools
import io
import itertools
import random
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from allranks import Ranks
from allranks.guard import Guard, GuardError

watching = functools.partial(Guard, every=1)
mse = nn.functional.mse_loss
CASES = {}


def case(function):
    """Register a training as a case."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def samples(count=24):
    """Return a data set that all ranks share, and seed each rank differently."""
    torch.manual_seed(0)
    found = TensorDataset(torch.randn(count, 6), torch.randn(count, 2))
    torch.manual_seed(100 + dist.get_rank())
    return found


def network(*inner):
    """Build a small network, whose weights differ by rank until they are broadcast."""
    return nn.Sequential(nn.Linear(6, 8), *inner, nn.ReLU(), nn.Linear(8, 2))


def fit(model, optimizer=None, *, epochs=2, step=None, loader=None, **options):
    """Train with the usual loop; ``step`` replaces forward and backward."""
    data = samples() if loader is None else None
    sampler = DistributedSampler(data) if loader is None else None
    loader = DataLoader(data, 4, sampler=sampler) if loader is None else loader
    sampler = sampler or getattr(loader, "sampler", None)
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.01)
    with watching(model, optimizer, **options) as watch:
        for epoch in range(epochs):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            for x, y in watch.epoch(loader, epoch):
                optimizer.zero_grad()
                if step:
                    step(x, y)
                else:
                    mse(model(x), y).backward()
                watch.step()
                optimizer.step()


@case
def batch_norm():
    fit(DDP(network(nn.BatchNorm1d(8))))


@case
def batch_norm_without_broadcast():
    fit(DDP(network(nn.BatchNorm1d(8)), broadcast_buffers=False))


@case
def batch_norm_of_which_a_part_is_in_evaluation():
    net = network(nn.BatchNorm1d(8), nn.BatchNorm1d(8))
    ddp = DDP(net)
    net[1].eval()
    fit(ddp)


@case
def static_graph():
    fit(DDP(network(), static_graph=True))


@case
def bucket_views():
    fit(DDP(network(), gradient_as_bucket_view=True))


@case
def unused_parameters():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.calls = nn.Linear(6, 2), nn.Linear(6, 2), 0

        def forward(self, x):
            self.calls += 1
            return (self.a, self.b)[self.calls % 2](x)

    fit(DDP(Two(), find_unused_parameters=True))


@case
def another_branch_on_each_rank():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x):
            return (self.a if dist.get_rank() else self.b)(x)

    fit(DDP(Two(), find_unused_parameters=True))


@case
def accumulation_with_a_short_rest():
    data = samples(40)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    with watching(ddp, optimizer) as watch:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for count, (x, y) in enumerate(watch.epoch(loader, epoch), 1):
                last = count % 3 == 0 or count == len(loader)
                with contextlib.nullcontext() if last else ddp.no_sync():
                    (mse(ddp(x), y) / 3).backward()
                if last:
                    watch.step()
                    optimizer.step()
                    optimizer.zero_grad()


@case
def accumulation_that_always_synchronizes():
    ddp = DDP(network())

    def step(x, y):
        for part in zip(x.split(2), y.split(2), strict=True):
            (mse(ddp(part[0]), part[1]) / 2).backward()

    fit(ddp, step=step)


@case
def scaler_and_clipping():
    ddp = DDP(network())
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", 256.0, growth_interval=2)
    data = samples()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    with watching(ddp, optimizer, scaler=scaler) as watch:
        for x, y in watch.epoch(loader, 0):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = mse(ddp(x).float(), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)
            watch.step()
            scaler.step(optimizer)
            scaler.update()


@case
def scaler_that_overflows():
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", 2.0**127, growth_interval=2)
    x, y = samples()[8 * dist.get_rank() :][:8]
    with watching(ddp, optimizer, scaler=scaler) as watch:
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(mse(ddp(x * 1e3), y)).backward()
            watch.step()
            scaler.step(optimizer)
            scaler.update()


@case
def clipping_by_norm():
    ddp = DDP(network())

    def step(x, y):
        mse(ddp(x), y).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.01)

    fit(ddp, step=step)


@case
def moving_average():
    net = network(nn.BatchNorm1d(8))
    ddp = DDP(net)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)

    def step(x, y):
        ema.update_parameters(net)
        mse(ddp(x), y).backward()

    fit(ddp, step=step)


@case
def moving_average_inside_of_the_model():
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.teacher = copy.deepcopy(self.net).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for slow, fast in zip(
                    self.teacher.parameters(), self.net.parameters(), strict=True
                ):
                    slow.lerp_(fast, 0.1)
                target = self.teacher(x + 0.1)
            return self.net(x) - 0.1 * target

    fit(DDP(Student()))


@case
def frozen_layers():
    net = network()
    net[0].requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in net.parameters() if p.requires_grad), 0.1)
    fit(DDP(net), optimizer)


@case
def tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.last.weight = self.first.weight

        def forward(self, x):
            return self.last(self.first(x))[:, :2]

    fit(DDP(Tied()))


@case
def adapters():
    class Adapter(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(inner.in_features, 2) * 0.1)
            self.up = nn.Parameter(torch.zeros(2, inner.out_features))

        def forward(self, x):
            return self.inner(x) + x @ self.down @ self.up

    net = network()
    net[0] = Adapter(net[0])
    fit(DDP(net))


@case
def adversaries():
    maker, judge = DDP(network()), DDP(nn.Linear(2, 1), broadcast_buffers=False)
    first = torch.optim.Adam(maker.parameters(), 0.01)
    second = torch.optim.Adam(judge.parameters(), 0.01)
    x, y = samples()[12 * dist.get_rank() :][:12]
    with watching(maker, first) as one, watching(judge, second) as two:
        for _ in range(4):
            second.zero_grad()
            (judge(maker(x).detach()).mean() - judge(y).mean()).backward()
            two.step()
            second.step()
            first.zero_grad()
            (-judge(maker(x)).mean()).backward()
            one.step()
            first.step()


@case
def adversaries_in_one_model():
    maker, judge = network(), nn.Linear(2, 1)
    both = nn.ModuleDict({"maker": DDP(maker), "judge": DDP(judge)})
    first = torch.optim.Adam(both["maker"].parameters(), 0.01)
    second = torch.optim.Adam(both["judge"].parameters(), 0.01)
    x, y = samples()[12 * dist.get_rank() :][:12]
    with watching(both, [first, second]) as watch:
        for _ in range(4):
            second.zero_grad()
            (
                both["judge"](both["maker"](x).detach()) - both["judge"](y)
            ).mean().backward()
            second.step()
            first.zero_grad()
            (-both["judge"](both["maker"](x)).mean()).backward()
            watch.step()
            first.step()


@case
def schedules_and_groups():
    ddp = DDP(network())
    sides = [p for n, p in ddp.named_parameters() if n.endswith("bias")]
    rest = [p for n, p in ddp.named_parameters() if not n.endswith("bias")]
    groups = [{"params": sides, "weight_decay": 0.0}, {"params": rest, "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, 0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    def step(x, y):
        mse(ddp(x), y).backward()
        schedule.step()

    fit(ddp, optimizer, step=step)


@case
def plateau():
    ddp = DDP(network())
    optimizer = torch.optim.Adam(ddp.parameters(), torch.tensor(0.05))
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    def step(x, y):
        loss = mse(ddp(x), y)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        schedule.step(total)

    fit(ddp, optimizer, step=step)


@case
def zero_redundancy():
    ddp = DDP(network())
    kind = torch.optim.Adam
    fit(ddp, ZeroRedundancyOptimizer(ddp.parameters(), kind, lr=0.01))


@case
def lbfgs():
    ddp = DDP(network())
    optimizer = torch.optim.LBFGS(ddp.parameters(), 0.1, max_iter=3)
    x, y = samples()[12 * dist.get_rank() :][:12]
    with watching(ddp, optimizer) as watch:
        for _ in range(3):

            def closure():
                optimizer.zero_grad()
                loss = mse(ddp(x), y)
                loss.backward()
                total = loss.detach().clone()
                dist.all_reduce(total)
                return total / 2

            optimizer.step(closure)
            watch.step()


@case
def join_of_uneven_inputs():
    ddp = DDP(network())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    x, y = samples()[:8]
    with watching(ddp, optimizer) as watch:
        with Join([ddp]):
            for _ in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                mse(ddp(x), y).backward()
                optimizer.step()
        watch.check()


@case
def dropout():
    fit(DDP(network(nn.Dropout(0.3))))


@case
def gradient_checkpointing():
    class Saves(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network(nn.Dropout(0.1))

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    fit(DDP(Saves()))


@case
def sharded():
    net = network()
    fully_shard(net[0])
    fully_shard(net)
    fit(net)


def mixed(net, **options):
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    fully_shard(net[0], mp_policy=policy, **options)
    fully_shard(net, mp_policy=policy, **options)
    return net


@case
def sharded_in_mixed_precision():
    net = mixed(network())

    def step(x, y):
        mse(net(x).float(), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    fit(net, step=step)


def fit_in_thirds(net):
    """Train with three passes per step, of which only the last reduces gradients."""

    def step(x, y):
        for part in range(3):
            net.set_requires_gradient_sync(part == 2)
            (mse(net(x + part).float(), y) / 3).backward()

    fit(net, step=step)


@case
def sharded_and_accumulated_without_reducing():
    net = mixed(network())
    fit_in_thirds(net)


@case
def sharded_and_accumulated_in_full_precision():
    net = network()
    fully_shard(net[0], reshard_after_forward=False)
    fully_shard(net)
    fit_in_thirds(net)


@case
def sharded_with_gradients_set_to_zero():
    net = mixed(network())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(x, y):
        mse(net(2 * x).float(), y).backward()
        optimizer.zero_grad(set_to_none=False)
        mse(net(x).float(), y).backward()

    fit(net, optimizer, step=step)


@case
def sharded_with_tied_weights_and_checkpointing():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.middle = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
            self.last.weight = self.first.weight

        def forward(self, x):
            x = checkpoint(self.middle, self.first(x), use_reentrant=False)
            return self.last(x)[:, :2]

    net = Tied()
    fully_shard(net.middle)
    fully_shard(net)
    fit(net)


@case
def sharded_and_not_divided():
    net = network()
    fully_shard(net)
    net.set_gradient_divide_factor(1.0)
    net.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it reduces

    def step(x, y):
        (mse(net(x), y) / 2).backward()

    fit(net, step=step)


@case
def hybrid_that_reduces_once():
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copy", "shard"))
    net = network()
    torch.manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p)
    fully_shard(net, mesh=mesh)

    def step(x, y):
        for part in range(2):
            net.set_requires_all_reduce(part == 1)
            (mse(net(x + part), y) / 2).backward()

    fit(net, step=step)


@case
def resumed():
    ddp = DDP(network())
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.01, amsgrad=True)
    fit(ddp, optimizer, epochs=1)
    file = io.BytesIO()
    torch.save({"m": ddp.module.state_dict(), "o": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file)
    net = network()
    net.load_state_dict(state["m"])
    ddp = DDP(net)
    optimizer = torch.optim.AdamW(ddp.parameters(), 0.01, amsgrad=True)
    optimizer.load_state_dict(state["o"])
    fit(ddp, optimizer, epochs=1)


class Stream(IterableDataset):
    """A stream of this rank's share, split among its workers."""

    def __init__(self, data):
        self.data, self.rank = data, dist.get_rank()

    def __iter__(self):
        """Yield this worker's samples."""
        info = torch.utils.data.get_worker_info()
        number, count = (info.id, info.num_workers) if info else (0, 1)
        return itertools.islice(self.data, self.rank + 2 * number, None, 2 * count)


@case
def streams():
    fit(DDP(network()), loader=DataLoader(Stream(samples()), 4))


@case
def batch_samplers():
    data = samples(26)
    sampler = DistributedSampler(data)
    batches = BatchSampler(sampler, 4, drop_last=False)
    ddp = DDP(network())
    loader = DataLoader(data, batch_sampler=batches)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    with watching(ddp, optimizer) as watch:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in watch.epoch(loader, epoch):
                optimizer.zero_grad()
                mse(ddp(x), y).backward()
                watch.step()
                optimizer.step()


@case
def own_batch_sampler():
    class Buckets:
        """A sampler of batches of neighbors, which are dealt out by rank."""

        def __len__(self):
            return 3

        def __iter__(self):
            order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
            for first in order[dist.get_rank() :: 2].tolist():
                yield list(range(4 * first, 4 * first + 4))

    fit(DDP(network()), loader=DataLoader(samples(), batch_sampler=Buckets()))


@case
def short_last_batch():
    data = samples(26)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    fit(DDP(network()), loader=loader)


@case
def another_loss_on_each_rank():
    ddp = DDP(network())

    def step(x, y):
        output = ddp(x)
        loss = mse(output, y) if dist.get_rank() else output.abs().mean() * 3
        loss.backward()

    fit(ddp, step=step)


@case
def a_rank_of_its_own():
    """Attributes that name the rank, measure or keep something may differ by rank."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            rank = dist.get_rank()
            self.net, self.rank, self.is_main = network(), rank, rank == 0
            self.config = {"local_rank": rank, "output_dir": f"/{rank}", "layers": 2}
            self.number, self.seen = torch.tensor(rank), torch.zeros(2)
            self.last, self.history = 0.0, []

        def forward(self, x):
            self.seen = self.seen + x.detach()[:, :2].sum(0)
            self.last = round(float(x.mean()), 3)
            self.history.append(x.detach().mean())
            return self.net(x)

    fit(DDP(Net()), epochs=3)


@case
def hooks_that_look_on_one_rank():
    net, log = network(), []
    if dist.get_rank() == 0:
        for p in net.parameters():
            p.register_hook(lambda grad: log.append(grad.norm()))
        net[0].register_forward_hook(lambda module, x, y: log.append(y.mean()))
    net[2].weight.register_hook(lambda grad: grad.clamp(-9, 9))
    fit(DDP(net))


@case
def buffers_that_every_rank_writes():
    class Observer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.register_buffer("low", torch.tensor(torch.inf))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.low = torch.minimum(self.low, x.detach().min())
            self.count += len(x)
            return self.net(x)

    fit(DDP(Observer(), broadcast_buffers=False), epochs=4)


@case
def copies_while_the_guard_looks():
    net = network()
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    ema = AveragedModel(net)

    def step(x, y):
        mse(net(x), y).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        ema.update_parameters(copy.deepcopy(net))
        torch.save(net, io.BytesIO())

    fit(net, step=step)


@case
def caches_that_fill_with_a_rank_s_samples():
    class Lazy(Dataset):
        def __init__(self):
            self.data, self.sizes, self.kept = samples(), [None] * 24, {}
            root = f"/node{dist.get_rank()}"
            self.files = [f"{root}/{i}.png" for i in range(24)]

        def __len__(self):
            return 24

        def __getitem__(self, i):
            self.sizes[i], self.kept[f"{i}"] = 3 * i, len(self.kept)
            return self.data[i]

    data = Lazy()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    fit(DDP(network()), loader=loader, epochs=3)


@case
def own_files_and_their_index():
    class Own(Dataset):
        def __init__(self):
            rank = dist.get_rank()
            self.rows = samples()[rank::2]
            self.files = [f"{rank}-{i}" for i in range(12)]
            self.index = {name: i for i, name in enumerate(self.files)}
            self.mean = self.rows[0].mean(0)

        def __len__(self):
            return 12

        def __getitem__(self, i):
            return self.rows[0][i], self.rows[1][i]

    fit(DDP(network()), loader=DataLoader(Own(), 4, shuffle=True))


@case
def draws_with_replacement():
    data = samples(100)
    seed = torch.Generator().manual_seed(dist.get_rank())
    options = {"replacement": True, "num_samples": 12, "generator": seed}
    sampler = torch.utils.data.RandomSampler(data, **options)
    fit(DDP(network()), loader=DataLoader(data, 4, sampler=sampler))


@case
def one_seed_and_one_choice_for_all():
    random.seed(5)

    def step(x, y):
        mse(ddp(x * random.choice([1, 2])), y).backward()

    ddp = DDP(network())
    torch.manual_seed(5)
    fit(ddp, step=step)


@case
def evaluated_and_trained_on():
    ddp = DDP(network(nn.Dropout(0.1), nn.BatchNorm1d(8)))
    ddp.module[2].eval()

    def step(x, y):
        mse(ddp(x), y).backward()
        ddp.module.eval()
        ddp.train()
        ddp.module[2].eval()

    fit(ddp, step=step)


@case
def noise_that_is_part_of_the_batch():
    ddp, x = DDP(network()), samples()[:4][0]
    with watching(ddp) as watch:
        given = x + dist.get_rank(), torch.randn_like(x)
        watch.preflight(lambda m, b: m(b[0] + b[1]).square().mean(), given)


@case
def statistics_and_counts_that_every_rank_writes():
    class Observed(nn.Module):
        """A model that keeps moments, a matrix of counts, and the latest batch."""

        def __init__(self):
            super().__init__()
            self.inner = network()
            self.register_buffer("covariance", torch.eye(6))
            self.register_buffer("counts", torch.zeros(3, 3))
            self.register_buffer("cache", torch.zeros(8, 6))
            self.register_buffer("lowest", torch.full((6,), 9.0))

        def forward(self, x):
            with torch.no_grad():
                self.covariance.lerp_(x.T @ x / len(x), 0.1)
                place = (x[:, :2] > 0).long().sum(1)
                self.counts[place, place.flip(0)] += 1
                self.cache[: len(x)] = x
                self.lowest.copy_(torch.minimum(self.lowest, x.amin(0)))
            return self.inner(x)

    fit(DDP(Observed()))


@case
def a_queue_that_is_gathered():
    class Queue(nn.Module):
        """A model with a queue of the keys of all ranks."""

        def __init__(self):
            super().__init__()
            self.inner, self.at = network(), 0
            self.register_buffer("queue", torch.randn(2, 16))

        def forward(self, x):
            y = self.inner(x)
            keys = [torch.empty_like(y) for _ in range(2)]
            dist.all_gather(keys, y.detach())
            place = torch.arange(self.at, self.at + 2 * len(y)) % 16
            old = self.queue.clone()
            self.queue[:, place] = torch.cat(keys).T
            self.at = (self.at + 2 * len(y)) % 16
            return (y @ old).mean(1, keepdim=True).expand(-1, 2)

    fit(DDP(Queue()))


@case
def a_sequence_that_is_meant():
    class Plain(Stream):
        """A stream that has epochs, and says that it does not shuffle."""

        shuffle = False

        def set_epoch(self, epoch):
            self.epoch = epoch

    data = samples()
    half = torch.utils.data.Subset(data, range(dist.get_rank(), 24, 2))
    fit(DDP(network()), loader=DataLoader(half, 4))
    sampler = DistributedSampler(data, shuffle=False)
    fit(DDP(network()), loader=DataLoader(data, 4, sampler=sampler))
    plain = Plain(data)
    fit(DDP(network()), loader=DataLoader(plain, 4))


@case
def an_order_of_each_epoch_s_own():
    data = torch.utils.data.Subset(samples(), range(dist.get_rank(), 24, 2))
    fit(DDP(network()), epochs=4, loader=DataLoader(data, 4, shuffle=True))


@case
def equal_samples_at_any_place():
    data = samples(40)
    draw = torch.Generator().manual_seed(2)
    order = torch.randint(0, 28, (40,), generator=draw)  # about a third occurs twice
    data = TensorDataset(*(x[order] for x in data.tensors))
    fit(DDP(network()), loader=DataLoader(Stream(data), 4))


@case
def a_criterion_synchronized_by_hand():
    ddp, centers = DDP(network()), nn.Parameter(torch.ones(3, 2))
    torch.nn.init.normal_(centers, generator=torch.Generator().manual_seed(0))

    def step(x, y):
        torch.cdist(ddp(x), centers).min(1).values.mean().backward()
        dist.all_reduce(centers.grad)
        centers.grad /= dist.get_world_size()

    fit(ddp, torch.optim.Adam([*ddp.parameters(), centers], 0.01), step=step)


@case
def tables_of_which_each_rank_holds_its_own():
    ddp = DDP(network())
    table = nn.Parameter(torch.randn(3 + dist.get_rank(), 6))

    def step(x, y):
        mse(ddp(x + table[0]), y).backward()

    fit(ddp, torch.optim.SGD([*ddp.parameters(), table], 0.1), step=step)


@case
def one_optimizer_of_two_models():
    ddp, other = DDP(network()), DDP(nn.Linear(2, 2))
    both = torch.optim.SGD([*ddp.parameters(), *other.parameters()], 0.1)
    fit(ddp, both, step=lambda x, y: mse(other(ddp(x)), y).backward())


@case
def eager_compilation():
    fit(torch.compile(DDP(network(nn.Dropout(0.1))), backend="eager"))


@case
def random_crops():
    class Noisy(Dataset):
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, i):
            x, y = self.data[i]
            return x + torch.randn(6) / 10, y

    data = Noisy(samples())
    fit(DDP(network()), loader=DataLoader(data, 4, sampler=DistributedSampler(data)))


@case
def weighted_samples_of_each_rank():
    data = samples()
    weights = torch.ones(24)
    sampler = torch.utils.data.WeightedRandomSampler(weights, 12)
    fit(DDP(network()), loader=DataLoader(data, 4, sampler=sampler))


@case
def a_validation_between_epochs():
    ddp = DDP(network(nn.BatchNorm1d(8), nn.Dropout(0.2)))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    data = samples()
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    tests = DataLoader(data, 4)
    with watching(ddp, optimizer) as watch:
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            ddp.train()
            for x, y in watch.epoch(loader, epoch):
                optimizer.zero_grad()
                mse(ddp(x), y).backward()
                watch.step()
                optimizer.step()
            ddp.eval()
            with torch.no_grad():
                if dist.get_rank() == 0:
                    sum(mse(ddp.module(x), y) for x, y in tests)
            dist.barrier()


@case
def warm_start_on_one_rank():
    net = network()
    if dist.get_rank() == 0:
        nn.init.ones_(net[0].weight)
    fit(DDP(net))


@case
def unfrozen_later_and_wrapped_again():
    net = network()
    net[0].requires_grad_(False)
    fit(DDP(net), epochs=1)
    net[0].requires_grad_(True)
    fit(DDP(net), epochs=1)


@case
def by_hand():
    net = network()
    for p in net.parameters():
        dist.broadcast(p.data, 0)

    def step(x, y):
        mse(net(x), y).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2

    fit(net, step=step)


@case
def embeddings():
    class Words(nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.words = nn.Embedding(20, 6, sparse=sparse)
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.words(x[:, 0].abs().long() % 20))

    ddp = DDP(Words(sparse=True))
    fit(ddp, torch.optim.SGD(ddp.parameters(), 0.1))


@case
def recurrent():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.head(self.inner(x[:, None])[0][:, 0])

    fit(DDP(Net()))


def play(name):
    """Run a training on this rank; return what the guard said, or "" if nothing."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            CASES[name]()
        except GuardError as error:
            return str(error)
        finally:
            dist.barrier()
    told = [str(w.message) for w in caught]
    meant = "need not be the mean"  # the guard says this of a hook, and it is true
    return " ".join(x for x in told if x.startswith("guard: ") and meant not in x)


@pytest.fixture(scope="module")
def ranks():
    """Yield two ranks for the whole module."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("name", CASES)
def test_a_right_training_raises_no_alarm(ranks, name):
    """Two ranks run a correct training, and the guard accuses neither."""

    def run(folder, module, name):
        import importlib
        import sys

        if folder not in sys.path:
            sys.path.append(folder)
        return importlib.import_module(module).play(name)

    file = Path(__file__)
    said = ranks.run(run, str(file.parent), file.stem, name, timeout=60)
    assert said == ["", ""]
