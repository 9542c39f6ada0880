"""Chapter 5's script: W ranks train as one would, resume exactly, refuse cleanly."""

import argparse
import functools
import os
import re
import sys
import time
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks import Ranks, launch
from allranks.base.paths import ROOT
from allranks.openings import ch5_ddp as picture
from book._ext.runs import records
from scripts import ch5_ddp

OTHER = "not what this script writes"
STEPS = ["--epochs=2", "--lr=0.2", "--samples=36"]  # 36: a multiple of 1, 2, 3 and 4


@pytest.fixture(scope="module")
def crews():
    """Yield one group of live ranks for each world size."""
    crews = {world_size: Ranks(world_size) for world_size in (1, 2, 3, 4)}
    yield crews
    for ranks in crews.values():
        ranks.close()


def run_train(script, flags, dtype=torch.float64, ddp_options=None):
    """Run a script's train() on a live rank; return its losses and its weights."""
    import functools
    import importlib

    import torch
    import torch.distributed as dist

    torch.set_default_dtype(dtype)
    module = importlib.import_module(f"scripts.{script}")
    ddp, make_task, tasks = getattr(module, "DDP", None), module.make_task, []

    def fewer(train_set, test_set, net):  # in float64, 357 images take 0.3 s
        few = (part[:20] for part in test_set.tensors)
        return train_set, torch.utils.data.TensorDataset(*few), net

    place = (dist.get_rank(), dist.get_world_size()) if script == "ch5_ddp" else ()
    try:
        if ddp_options:
            module.DDP = functools.partial(ddp, **ddp_options)
        module.make_task = lambda num: tasks.append(fewer(*make_task(num))) or tasks[0]
        args = module.parse_args(flags)
        losses = module.train(args, *place, torch.device("cpu"))
    finally:
        module.DDP, module.make_task = ddp, make_task
    return torch.stack(losses), torch.nn.utils.parameters_to_vector(
        tasks[0][2].parameters()
    ).detach()


@pytest.fixture
def train_ranks(crews):
    """Return a function that runs ch5_ddp's train() on W ranks.

    It returns losses (W, steps) and weights (W, n).
    """

    def run(world_size, *flags, **options):
        ranks = crews[world_size]
        results = ranks.run(run_train, "ch5_ddp", flags, quiet=True, **options)
        losses, weights = zip(*results, strict=True)
        return torch.stack(losses), torch.stack(weights)

    return run


@pytest.fixture(scope="module")
def train_single(crews):
    """Return a function that runs ch5_single's train() in one process.

    It returns losses (steps,) and weights (n,).
    """

    @functools.cache
    def run(*flags, **options):
        return crews[1].run(run_train, "ch5_single", flags, quiet=True, **options)[0]

    return run


def checkpoint_of(tmp_path, name="checkpoint.pt"):
    """Return the flag that names a checkpoint in this test's folder."""
    return f"--checkpoint={tmp_path / name}"


class TestTheorem:
    """Averaging over W ranks with batch b is training one rank with batch W b."""

    @pytest.mark.parametrize(
        "world_size, dtype, bound",
        [(w, torch.float64, 1e-10) for w in (1, 2, 3, 4)] + [(4, torch.float32, 2e-5)],
    )
    def test_w_ranks_follow_one(
        self, world_size, dtype, bound, tmp_path, train_ranks, train_single
    ):
        """W ranks have the losses and the weights of one, over two shuffled epochs.

        An epoch ends with half a batch. Ranks draw different weights (seed + rank), so
        this fails unless DDP copies rank 0's.
        Measured: 9e-16 in float64, 3e-7 in float32.
        """
        batch = f"--batch-size={24 // world_size}"
        many, replicas = train_ranks(
            world_size, *STEPS, batch, checkpoint_of(tmp_path), dtype=dtype
        )
        one, weights = train_single(*STEPS, "--batch-size=24", dtype=dtype)
        assert many.shape == (world_size, 2 * 2)
        torch.testing.assert_close(many.mean(dim=0), one, rtol=0, atol=bound)
        torch.testing.assert_close(replicas[0], weights, rtol=0, atol=bound)
        assert (replicas == replicas[0]).all(), "the replicas differ"

    @pytest.mark.parametrize("num, batch", [(5, 1), (17, 4), (17, 64)])
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    def test_any_dataset_size(
        self, world_size, num, batch, tmp_path, train_ranks, crews
    ):
        """If W does not divide N, W ranks match one that sees the repeats as well."""
        flags = ["--epochs=2", f"--samples={num}"]
        many, replicas = train_ranks(
            world_size, *flags, f"--batch-size={batch}", checkpoint_of(tmp_path)
        )
        sizes = num, world_size, batch * world_size
        ((one, weights),) = crews[1].run(train_on_padded_order, *sizes)
        torch.testing.assert_close(many.mean(dim=0), one, rtol=0, atol=1e-10)
        torch.testing.assert_close(replicas[0], weights, rtol=0, atol=1e-10)


def train_on_padded_order(num, world_size, batch_size):
    """Train two epochs in one process, over an order padded to a multiple of W."""
    import torch

    from scripts import ch5_single

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    train_set, _, net = ch5_single.make_task(num)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(2):
        order = torch.randperm(num, generator=torch.Generator().manual_seed(epoch))
        order = torch.cat([order, order[: -num % world_size]])
        for part in order.split(batch_size):
            x, y = train_set[part]
            loss = torch.nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    weights = torch.nn.utils.parameters_to_vector(net.parameters())
    return torch.stack(losses), weights.detach()


class TestResume:
    """An interrupted run continues as if nothing had happened."""

    @pytest.fixture
    def compare(self, tmp_path, train_ranks):
        """Return a function: weights of a whole run, and of one cut after 2 epochs."""
        flags = ["--samples=24", "--batch-size=3"]
        whole = checkpoint_of(tmp_path, "whole.pt")
        parts = checkpoint_of(tmp_path, "parts.pt")

        def run(world_size, **options):
            def train(*more):
                return train_ranks(world_size, *flags, *more, **options)

            losses, straight = train("--epochs=4", whole)
            train("--epochs=2", parts)
            rest, resumed = train("--epochs=4", "--resume", parts)
            assert rest.shape[1] == losses.shape[1] // 2  # two epochs, not four
            return straight, resumed

        return run

    @pytest.mark.parametrize("world_size", [1, 2])
    def test_bit_for_bit(self, world_size, compare):
        """Up to two ranks resume bit for bit: a sum of two numbers has no order."""
        straight, resumed = compare(world_size, dtype=torch.float32)
        assert torch.equal(straight, resumed)

    def test_of_four_ranks_rounds_its_first_step_otherwise(self, compare):
        """DDP reorders its bucket after a first step, and with it the order of sums."""
        straight, resumed = compare(4)
        torch.testing.assert_close(straight, resumed, rtol=0, atol=1e-12)

    def test_of_four_ranks_bit_for_bit_without_the_new_order(self, compare):
        """With find_unused_parameters=True, DDP keeps its first order."""
        straight, resumed = compare(
            4, dtype=torch.float32, ddp_options={"find_unused_parameters": True}
        )
        assert torch.equal(straight, resumed)

    def test_on_fewer_ranks_the_samples_come_in_the_same_order(
        self, tmp_path, train_ranks, train_single
    ):
        """4 ranks x 6, then 2 ranks x 12, follow the curve of one process with 24."""
        flags = [*STEPS[1:], checkpoint_of(tmp_path)]
        train_ranks(4, *flags, "--batch-size=6", "--epochs=1")
        rest, replicas = train_ranks(
            2, *flags, "--batch-size=12", "--epochs=2", "--resume"
        )
        one, weights = train_single(*STEPS, "--batch-size=24")
        torch.testing.assert_close(rest.mean(dim=0), one[2:], rtol=0, atol=1e-10)
        torch.testing.assert_close(replicas[0], weights, rtol=0, atol=1e-10)


def evaluate(logits, labels):
    """Return, on a live rank, the script's accuracy for given logits."""
    import torch

    from scripts import ch5_ddp

    torch.set_default_dtype(torch.float32)
    test_set = torch.utils.data.TensorDataset(logits, labels)
    return ch5_ddp.evaluate(torch.nn.Identity(), test_set, torch.device("cpu"))


@given(st.integers(1, 30), st.sampled_from([1, 2, 3, 4]), st.integers(0, 9))
@settings(deadline=None, max_examples=50)
def test_evaluation_is_exact(crews, num, world_size, seed):
    """Every sample counts once for any N and W, even W > N, and all ranks agree."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.rand(num, 3, generator=random)
    labels = torch.randint(3, (num,), generator=random)
    right = sum(row.argmax() == y for row, y in zip(logits, labels, strict=True))
    found = crews[world_size].run(evaluate, logits, labels)
    assert found == [(right / num).item()] * world_size


class TestWrongUse:
    """Every rank says one sentence, none hangs, and the old checkpoint stays."""

    @pytest.mark.parametrize(
        "flags",
        [
            "--epochs 0",
            "--epochs -1",
            "--batch-size 0",
            "--batch-size -8",
            "--samples 0",
            "--lr 0.0",
            "--lr nan",
            "--lr inf",
        ],
    )
    def test_impossible_numbers(self, flags):
        """They are refused before anything starts, naming the flag and the value."""
        with pytest.raises(SystemExit) as end:
            ch5_ddp.parse_args(flags.split())
        most = 1440 if "samples" in flags else 65536
        what = "1e-30 to 1e+30" if "lr" in flags else f"1 to {most}"
        assert end.value.code == f"{flags}: must be {what}"  # to stderr, exit code 1

    def test_started_without_torchrun(self, monkeypatch):
        """The script then says how to start it: its docstring."""
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setitem(sys.modules, "__main__", ch5_ddp)
        with pytest.raises(SystemExit, match=r"torchrun .+ scripts/ch5_ddp"):
            ch5_ddp.setup(None)

    def test_more_local_ranks_than_gpus(self, monkeypatch):
        """They are refused: two would share one GPU, or fail with NCCL's message."""
        for name in "RANK", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR":
            monkeypatch.setenv(name, "1")
        for name in "WORLD_SIZE", "LOCAL_WORLD_SIZE":
            monkeypatch.setenv(name, "2")
        gpu = torch.device("cuda")
        fake = {"current_accelerator": lambda **_: gpu}
        fake["device_count"] = lambda: 1
        for name, value in fake.items():
            monkeypatch.setattr(torch.accelerator, name, value)
        with pytest.raises(SystemExit, match=r"2 ranks on .+, but 1 GPUs: lower"):
            ch5_ddp.setup(None)

    @pytest.fixture
    def refusals(self, crews):
        """Return a function that returns the refusal on which all ranks agree."""

        def refuse(flags, env):
            try:
                with patch.dict(os.environ, env):
                    run_train("ch5_ddp", flags, torch.float32)
            except SystemExit as end:
                return str(end)

        def run(flags, world_size=2, ends=True, env=None):
            said = crews[world_size].run(
                refuse, flags, env or {}, timeout=20, quiet=True
            )
            assert bool(said[0]) == ends and said == said[:1] * world_size
            return said[0]

        return run

    def test_more_ranks_than_samples(self, tmp_path, refusals):
        """A rank without a sample has no gradient to average."""
        said = refusals(["--samples=2", checkpoint_of(tmp_path)], 3)
        assert said == "3 ranks > 2 samples: start fewer"

    @pytest.mark.parametrize("place", ["missing/a.pt", "file/a.pt", "/proc/a.pt", ""])
    def test_unwritable_place(self, place, tmp_path, refusals):
        """It is refused before the first step, not after the first epoch."""
        (tmp_path / "file").touch()
        path = tmp_path / place  # "": a folder where the file should be
        said = refusals([f"--checkpoint={path}"])
        assert re.fullmatch(
            rf"--checkpoint {path}: .+: name a file that can be written",
            said,
        )
        assert os.listdir(tmp_path) == ["file"]

    def write(self, path, kind):
        """Write a good checkpoint, or a bad one of some kind."""
        run = {"lr": 0.05, "samples": 8, "seed": 0, "samples a step": 2 * 96}
        run |= {"ranks": 2, "batch_size": 96, "epochs": 1}
        state = {"run": run, "epoch": 1, "job": "mine"}
        net = ch5_ddp.make_task(8)[2]
        optimizer = torch.optim.SGD(net.parameters(), 0.05, 0.9)
        sum(param.sum() for param in net.parameters()).backward()
        optimizer.step()  # now there are momenta
        state |= {"model": net.state_dict(), "optim": optimizer.state_dict()}
        torch.save(state, path)
        good = path.read_bytes()
        if kind == "foreign":
            torch.save(torch.nn.Linear(2, 2).state_dict(), path)
        elif kind == "other model":
            torch.save(state | {"model": torch.nn.Linear(2, 2).state_dict()}, path)
        elif kind == "whole module":
            torch.save(net, path)
        elif kind == "text":
            path.write_text("not a checkpoint\n")
        elif kind in (0, 10, len(good) // 2, -1):
            path.write_bytes(good[:kind])
        elif kind == "missing":
            path.unlink()
        elif kind == "namespace":
            torch.save(state | {"run": argparse.Namespace(**run)}, path)
        elif kind == "empty optimizer":
            torch.save(
                state | {"optim": torch.optim.SGD([{"params": []}]).state_dict()}, path
            )
        elif kind == "no step":
            fresh = torch.optim.SGD(net.parameters(), 0.05, 0.9)
            torch.save(state | {"optim": fresh.state_dict()}, path)
        elif kind == "other momenta":
            optimizer.state[net[0].weight]["momentum_buffer"] = torch.ones(2)
            torch.save(state | {"optim": optimizer.state_dict()}, path)
        elif kind == "other rate":
            optimizer.param_groups[0]["lr"] = 7.0
            torch.save(state | {"optim": optimizer.state_dict()}, path)
        elif kind == "nan weight":
            net[0].weight.data[0] = float("nan")
            torch.save(state, path)
        elif kind == "inf momentum":
            optimizer.state[net[0].weight]["momentum_buffer"][0] = float("inf")
            torch.save(state, path)
        elif isinstance(kind, tuple):
            torch.save(state | {"epoch": kind[0]}, path)
        elif kind in state:
            torch.save({k: v for k, v in state.items() if k != kind}, path)
        elif kind in run:
            torch.save(state | {"run": {k: run[k] for k in run if k != kind}}, path)
        else:
            assert kind == "good"
        return path.read_bytes() if path.exists() else None

    @pytest.mark.parametrize(
        "kind, flags, why",
        [
            ("missing", "", "No such file or directory"),
            (0, "", "damaged"),
            (10, "", "damaged"),
            (-1, "", "damaged"),
            ("text", "", "no checkpoint"),
            ("foreign", "", OTHER),
            ("whole module", "", "it holds more than weights"),
            ("namespace", "", "it holds more than weights"),
            ("other model", "", "of another model"),
            ("model", "", OTHER),
            ("optim", "", OTHER),
            ("epoch", "", OTHER),
            ("run", "", OTHER),
            ("job", "", OTHER),
            ("lr", "", OTHER),
            ("empty optimizer", "", "parameter group that doesn't match"),
            ("no step", "", OTHER),
            ("other momenta", "", OTHER),
            ("other rate", "", OTHER),
            ("nan weight", "", "it holds numbers that are not finite"),
            ("inf momentum", "", "it holds numbers that are not finite"),
            ((-1,), "", "epoch -1 of --epochs 8"),
            ((0.5,), "", "epoch 0.5 of --epochs 8"),
            ((True,), "", "epoch True of --epochs 8"),
            ("good", "--lr=0.1", "it has lr = 0.05, not 0.1"),
            ("good", "--seed=1", "it has seed = 0, not 1"),
            ("good", "--samples=9", "it has samples = 8, not 9"),
            ("good", "--batch-size=9", "it has samples a step = 192, not 18"),
            ("good", "--epochs=1", "epoch 1 of --epochs 1"),
        ],
    )
    def test_resume_from(self, kind, flags, why, tmp_path, refusals):
        """A missing, damaged, foreign or finished checkpoint is refused, unchanged."""
        path = tmp_path / "checkpoint.pt"
        before = self.write(path, kind)
        said = refusals(
            ["--resume", f"--checkpoint={path}", "--samples=8", *flags.split()]
        )
        assert said.startswith(f"--checkpoint {path} cannot be used: ")
        assert why in said and said.endswith(": change flags or file")
        assert len(said.splitlines()) == 1
        assert (path.read_bytes() if path.exists() else None) == before

    def test_a_finished_file_is_not_written_over(self, tmp_path, refusals):
        """Only --resume continues from it, and only --overwrite starts again."""
        before = self.write(tmp_path / "checkpoint.pt", "good")
        flags = [checkpoint_of(tmp_path), "--samples=8", "--epochs=1"]
        said = refusals(flags)
        assert said.endswith(
            "checkpoint.pt exists: go on with --resume, or --overwrite it"
        )
        assert (tmp_path / "checkpoint.pt").read_bytes() == before
        assert refusals([*flags, "--overwrite"], ends=False) is None
        assert (tmp_path / "checkpoint.pt").read_bytes() != before

    @pytest.mark.parametrize("job", ["mine", "other"])
    def test_a_restart_goes_on_in_its_own_file(self, job, tmp_path, refusals):
        """A restart gets no --resume flag, but it continues its own job's checkpoint.

        torchrun's --max-restarts passes the flags of the first start again.
        """
        before = self.write(tmp_path / "checkpoint.pt", "good")
        flags = [checkpoint_of(tmp_path), "--samples=8", "--epochs=2"]
        told = {"TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_RESTART_COUNT": "1"}
        said = refusals(flags, ends=job == "other", env=told)
        after = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
        if job == "mine":
            assert after["epoch"] == 2
        else:
            assert "cannot be used: another job wrote it" in said
            assert (tmp_path / "checkpoint.pt").read_bytes() == before

    def test_a_good_one_is_taken(self, tmp_path, train_ranks):
        """A good checkpoint is accepted, so the refusals above mean something."""
        self.write(tmp_path / "checkpoint.pt", "good")
        flags = ["--resume", checkpoint_of(tmp_path), "--samples=8", "--epochs=2"]
        losses, _ = train_ranks(2, *flags, dtype=torch.float32)
        assert losses.shape == (2, 1)


def step_after(change):
    """Change a wrapped model on a live rank and step twice.

    Returns which layers' gradients differ between ranks, step by step, or the error.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    ddp = nn.parallel.DistributedDataParallel(net)
    if change == "add":
        net.append(nn.Linear(2, 2))
    elif change == "replace":
        net[1] = nn.Linear(4, 2)
    else:
        net[1].weight = nn.Parameter(torch.rand(2, 4))
    said = []
    for _ in range(2):
        try:
            ddp(torch.full((3, 4), dist.get_rank() + 1.0)).square().sum().backward()
        except RuntimeError as error:
            return [*said, str(error)]
        apart = [torch.zeros_like(layer.bias) for layer in net]
        for layer, grad in zip(net, apart, strict=True):
            grad += layer.bias.grad
            dist.all_reduce(grad)
            grad -= dist.get_world_size() * layer.bias.grad
        said.append([bool(grad.abs().max() > 1e-3) for grad in apart])
    return said


def test_a_layer_that_comes_after_the_wrapping(crews):
    """DDP never averages an added layer, and it waits for one that was replaced."""
    for said in crews[2].run(step_after, "add"):
        assert said == [[False, False, True]] * 2
    for change in "replace", "grow":
        for first, second in crews[2].run(step_after, change):
            assert first == [True, True]
            assert second.startswith(
                "Expected to have finished reduction in the prior iteration"
            )


DYING = """
import sys, time
sys.path.insert(0, {scripts!r})
import ch5_ddp

def die(self, epoch):
    if self.rank == 1 and epoch == 1:
        print(time.time(), flush=True)
        raise ValueError("rank 1 gives up")

ch5_ddp.DistributedSampler.set_epoch = die
ch5_ddp.train(args := ch5_ddp.parse_args(), *ch5_ddp.setup(args))
"""


def test_one_failing_rank_ends_all(tmp_path):
    """The launch ends within 10 s and reports the failing rank's error."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(scripts=os.path.dirname(ch5_ddp.__file__)))
    flags = ["--samples=64", checkpoint_of(tmp_path)]
    run = launch(script, 2, *flags, timeout=60, check=False)
    took = time.time() - float(run.lines[1][0])
    assert run.exit_code == 1
    assert len(run.lines[0]) == 1  # epoch 0
    assert "ValueError: rank 1 gives up" in run.errors[1]
    assert took < 10


LINE = re.compile(
    r"\[rank 0/2\] epoch=(\d+) loss=\d+\.\d{4} accuracy=(\d\.\d{4}) \d+ samples/s"
)


def test_defaults_read_digits():
    """The run that the page shows reads 95 of 100 unseen digits or more."""
    line = "torchrun --standalone --nproc-per-node 2 scripts/ch5_ddp.py"
    page = records.commands((ROOT / "book" / "ch5_ddp.md").read_text("utf8"))
    (command,) = (one for one in page if one.line == line)
    output = records.read(ROOT / "book" / "_runs", command)
    lines = [LINE.fullmatch(line) for line in output.splitlines()]
    assert [int(line[1]) for line in lines] == list(range(8))
    assert float(lines[-1][2]) >= 0.95


def errors_on_the_page():
    """Return torch's errors for device_ids on a CPU model, and NCCL without a GPU."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    said = []
    for wrong in (
        lambda: DistributedDataParallel(torch.nn.Linear(1, 1), device_ids=[0]),
        lambda: dist.new_group([0], backend="nccl"),
    ):
        try:
            wrong()
        except (ValueError, RuntimeError) as error:
            said.append(str(error))
    return said


@pytest.mark.skipif(torch.accelerator.is_available(), reason="both work on a GPU")
def test_the_errors_that_the_page_quotes():
    """Torch still says what the page quotes; CUDA and CPU wheels differ on NCCL."""
    with Ranks(1) as ranks:
        ((device_ids, nccl),) = ranks.run(errors_on_the_page)
    assert "device_ids and output_device" in device_ids
    of_cuda = "no GPUs found|nccl2 requires at least one CUDA device"  # 2.13, 2.15
    assert re.search(f"doesn't have NCCL built in|{of_cuda}", nccl)


def launch_once(world_size, tmp_path):
    """Launch a short run and check that each rank exits with 0 and no error output."""
    flags = ["--epochs=1", "--samples=64", "--overwrite", checkpoint_of(tmp_path)]
    run = launch("ch5_ddp", world_size, *flags, timeout=60)
    assert len(run.lines[0]) == 1 and not any(run.errors.values())


@pytest.mark.parametrize("world_size", [1, 3])  # the page's command covers two
def test_ends_cleanly(world_size, tmp_path):
    """No launch aborts at exit.

    With torch 2.13, 8 of 25 did, until the script collected garbage before exiting.
    """
    launch_once(world_size, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_ends_cleanly_200_times(tmp_path):
    """None of 200 launches aborts."""
    for _ in range(200):
        launch_once(2, tmp_path)


def test_the_openings_bars_average_and_step_as_ddp_does():
    """Gradients differ, their average is in between, and weights stay equal."""
    first, second = picture.OWN
    assert first != second
    pairs = zip(first, second, picture.AVERAGE, strict=True)
    assert all(2 * mean == a + b for a, b, mean in pairs)
    for _, _, sign, bars in picture.STAGES[1:]:
        assert (bars[0] == bars[1]) is (sign == "=")
