"""Chapter 6's pipeline trains as the unsplit net does, with any schedule and DDP."""

import json
from pathlib import Path

import pytest
import torch

from allranks import Ranks
from scripts import ch6_pipeline

FLAGS = ["--steps=6", "--batch-size=8", "--microbatches=4"]


@pytest.fixture(scope="module")
def crews():
    """Yield groups of one, two and four live ranks."""
    crews = {world_size: Ranks(world_size) for world_size in (1, 2, 4)}
    yield crews
    for ranks in crews.values():
        ranks.close()


def run_train(flags):
    """Run train() on a live rank; return losses, and gradients with weights."""
    import torch
    import torch.distributed as dist

    from scripts import ch6_pipeline

    torch.set_default_dtype(torch.float64)
    make_text_task, nets = ch6_pipeline.make_text_task, []

    def keep():
        pieces, net = make_text_task()
        nets.append(net)
        return pieces, net

    def reduce(tensor, *args, **kwargs):
        assert not tensor.requires_grad, "a graph: gloo's AVG may crash (torch 2.13)"
        return all_reduce(tensor, *args, **kwargs)

    all_reduce, dist.all_reduce = dist.all_reduce, reduce
    ch6_pipeline.make_text_task = keep
    try:
        place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
        losses = ch6_pipeline.train(ch6_pipeline.parse_args(flags), *place)
    finally:
        ch6_pipeline.make_text_task, dist.all_reduce = make_text_task, all_reduce
    gradients = [None if p.grad is None else +p.grad for p in nets[0].parameters()]
    return losses, [
        (gradient, p.detach())
        for gradient, p in zip(gradients, nets[0].parameters(), strict=True)
    ]


def train_whole(flags):
    """Train the same net on the same samples in one process, without a pipeline."""
    import torch

    from scripts import ch6_pipeline

    torch.set_default_dtype(torch.float64)
    args = ch6_pipeline.parse_args(flags)
    torch.manual_seed(args.seed)
    pieces, net = ch6_pipeline.make_text_task()
    optimizer = torch.optim.AdamW(net.parameters(), args.lr)
    dice, losses = torch.Generator().manual_seed(args.seed), []
    for _ in range(args.steps):
        pick = torch.randint(len(pieces), (args.batch_size,), generator=dice)
        x, y = pieces[pick][:, :-1].long(), pieces[pick][:, 1:].long()
        loss = torch.nn.functional.cross_entropy(net(x), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [(p.grad, p.detach()) for p in net.parameters()]


@pytest.fixture(scope="module")
def whole(crews):
    """Return the result of the unsplit training."""
    return crews[1].run(train_whole, FLAGS)[0]


@pytest.mark.parametrize(
    "world_size, flags",
    [
        (2, ["--schedule=gpipe"]),
        (2, ["--schedule=1f1b"]),
        (2, ["--schedule=interleaved1f1b"]),
        (4, ["--schedule=gpipe"]),
        (4, ["--schedule=1f1b"]),
        (4, ["--schedule=interleaved1f1b"]),
        (4, ["--schedule=gpipe", "--dp=2"]),
        (4, ["--schedule=1f1b", "--dp=2"]),
        (4, ["--schedule=interleaved1f1b", "--dp=2"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_pipeline_trains_the_unsplit_net(world_size, flags, crews, whole):
    """Six steps of AdamW give the same losses, gradients and weights.

    Measured: 7e-13.
    """
    by_rank = crews[world_size].run(run_train, [*FLAGS, *flags], quiet=True)
    replicas = 2 if "--dp=2" in flags else 1
    found = [losses for losses, _ in by_rank if losses]
    assert len(found) == replicas
    for losses in found:
        torch.testing.assert_close(losses, whole[0], rtol=0, atol=1e-10)
    for i, expected in enumerate(whole[1]):
        holders = [own[i] for _, own in by_rank if own[i][0] is not None]
        assert len(holders) == replicas, "a layer lives once in each replica"
        for own in holders:
            for value, right in zip(own, expected, strict=True):
                torch.testing.assert_close(value, right, rtol=0, atol=1e-10)


def run_step(schedule):
    """Run one pipeline step on a live rank; return its output on the last stage."""
    import torch
    import torch.distributed as dist

    from scripts import ch6_pipeline

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    pieces, net = ch6_pipeline.make_text_task()
    args = ch6_pipeline.parse_args([f"--schedule={schedule}", "--microbatches=4"])
    mesh = dist.init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp", "pp"))
    whole = net(pieces[:8, :-1].long()).detach()
    device = torch.device("cpu")
    stages, pipe = ch6_pipeline.build(args, mesh, net, device)
    x = [pieces[:8, :-1].long()] if stages[0].is_first else []
    output = pipe.step(*x, target=pieces[:8, 1:].flatten().long())
    return (whole, output) if stages[-1].is_last else None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved1f1b"])
def test_outputs_are_the_unsplit_nets(schedule, crews):
    whole, output = crews[4].run(run_step, schedule)[-1]
    torch.testing.assert_close(output, whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("num", range(1, 9))
def test_the_cut_leaves_nothing_out(num):
    """Every layer is in one stage, in order, and stages have equally many blocks.

    If the blocks can't be divided evenly, some stages have one more.
    """
    _, net = ch6_pipeline.make_text_task()
    parts = ch6_pipeline.into_stages(net, num)
    assert [layer for part in parts for layer in part] == list(net)
    blocks = [sum(isinstance(x, ch6_pipeline.Causal) for x in part) for part in parts]
    assert max(blocks) - min(blocks) <= 1 and min(blocks) >= 1


def test_a_byte_sees_only_those_before_it():
    """A change of byte 40 changes no prediction of the bytes up to 40."""
    torch.manual_seed(0)
    pieces, net = ch6_pipeline.make_text_task()
    x = pieces[:1, :-1].long()
    changed = x.clone()
    changed[0, 40] ^= 1
    same = (net(x) == net(changed)).all(dim=1)
    assert same[:40].all() and not same[40:].any()


@pytest.mark.parametrize(
    "world_size, flags, message",
    [
        (2, ["--dp=3"], "--dp 3: must divide 2, the ranks"),
        (2, ["--microbatches=3"], "--batch-size 32: must be a multiple of --dp x --m"),
        (2, ["--microbatches=1"], "--microbatches: Number of microbatches (1) must"),
        (1, ["--steps=0"], "--steps 0: must be 1 to 65536"),
        (1, ["--lr=nan"], "--lr nan: must be 1e-30 to 1e+30"),
    ],
)
def test_refuses_in_one_sentence_on_every_rank(world_size, flags, message, crews):
    said = crews[world_size].run(refusal, flags)
    assert all(text.startswith(message) for text in said), said


def refusal(flags):
    """Return what train() says on a live rank before it exits."""
    import torch
    import torch.distributed as dist

    from scripts import ch6_pipeline

    try:
        args = ch6_pipeline.parse_args(flags)
        place = dist.get_rank(), dist.get_world_size()
        ch6_pipeline.train(args, *place, torch.device("cpu"))
    except SystemExit as error:
        return str(error)


def test_refuses_more_stages_than_blocks(crews, monkeypatch):
    monkeypatch.setattr(ch6_pipeline, "BLOCKS", 1)
    args = ch6_pipeline.parse_args(["--schedule=interleaved1f1b"])

    class Alone:
        """A mesh of one rank."""

        def __getitem__(self, axis):
            return self

        def size(self):
            return 1

        def get_local_rank(self):
            return 0

        def get_group(self, axis):
            return None

    with pytest.raises(SystemExit, match=r"^2 stages > 1 blocks: start fewer ranks$"):
        ch6_pipeline.build(args, Alone(), torch.nn.Sequential(), torch.device("cpu"))


def test_the_recorded_figures_bear_out_what_the_page_says():
    """Sleeping stages reach a little less than the law, and the cut pays as predicted.

    Four stages that compute get at most about half: they share two cores.
    """
    path = Path(__file__).resolve().parents[1] / "book" / "_data" / "bench.json"
    found = json.loads(path.read_text("utf8"))["pipeline"]
    for num in (2, 4):
        for count in (1, 2, 4, 8, 16):
            figures = found[f"stages_{num}"][f"m{count}"]
            assert 0.85 * figures["law"] < figures["sleep"] <= figures["law"]
    assert found["stages_4"]["m16"]["busy"] < 0.55
    assert [found[name]["held"] for name in ("gpipe", "1f1b")] == [8, 4]
    assert (
        found["gpipe"]["law"] == found["1f1b"]["law"] < found["interleaved1f1b"]["law"]
    )
    assert found["cut"]["gain"] == pytest.approx(found["cut"]["predicted"], rel=0.1)
