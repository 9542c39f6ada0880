"""Each sample is seen once per epoch: on any ranks, and after any kill."""

import itertools
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks import Ranks, RanksError, launch
from scripts import ch9_data as script

TEXT = torch.arange(8193 * 64, dtype=torch.int32)  # byte 64 i begins sample i


def read(stream: script.Stream) -> list[list[int]]:
    """Return the samples of each step."""
    return [[int(w[0]) // script.SIZE for w in windows] for windows, _ in stream]


def steps(num, lanes, readers, batch, states=None, key="7 1") -> list[list[int]]:
    """Return what all readers together read in each step."""
    every = [
        read(script.Stream(TEXT, deal(num, lanes, key, states), batch, (r, readers)))
        for r in range(readers)
    ]
    return [sorted(itertools.chain(*step)) for step in zip(*every, strict=True)]


def deal(num, lanes, key, states=None):
    """Deal shards to lanes that start, or that go on."""
    return script.deal(num, lanes, key, states or {})


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 600),
    lanes=st.integers(1, 12),
    readers=st.integers(1, 14),
    batch=st.integers(1, 40),
)
def test_each_sample_is_read_once_and_in_the_same_step_by_any_number_of_readers(
    num, lanes, readers, batch
):
    """Also if there are more readers than lanes, which then read nothing."""
    found = steps(num, lanes, readers, batch)
    assert sorted(itertools.chain(*found)) == list(range(num))
    assert found == steps(num, lanes, 1, batch)


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(30, 600),
    lanes=st.integers(1, 8),
    readers=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    batch=st.integers(1, 20),
    data=st.data(),
)
def test_after_any_step_others_go_on_with_what_is_left(
    num, lanes, readers, batch, data
):
    """As many readers as you like read what one reader would have read next."""
    whole = steps(num, lanes, 1, batch)
    done = data.draw(st.integers(0, len(whole)))
    states = {}
    for r in range(readers[0]):
        stream = script.Stream(TEXT, deal(num, lanes, "7 1"), batch, (r, readers[0]))
        ahead = iter(stream)  # by a step: what it has sent must not change any more
        for _, (_, own) in zip(range(done), ahead, strict=False):
            states |= own
        next(ahead, None)
    assert steps(num, lanes, readers[1], batch, states) == whole[done:]


def test_another_epoch_or_seed_has_another_order_and_the_buffer_mixes_shards():
    """The order is a new one, and neighbours in a file are no longer neighbours."""
    first, second = (deal(6144, 8, key)[0].take(300) for key in ("0 1", "0 2"))
    assert first != second and first != sorted(first)
    apart = [abs(a - b) for a, b in itertools.pairwise(first)]
    assert sum(a == 1 for a in apart) < 15
    assert len(set(first)) == 300
    one, other = (script.Lane([range(99)], key).take(99) for key in ("0 1 0", "0 1 1"))
    assert one != other  # two lanes do not draw alike


def args_for(path, *flags):
    """Return the script's flags."""
    return [f"--checkpoint={path}", "--batch-size=40", *flags]


def train(flags, die=None):
    """Train on a live rank; rank die[0] is killed at call die[2] of die[1]."""
    import os
    import signal

    import torch
    import torch.distributed as dist

    from scripts import ch9_data as script

    if die and dist.get_rank() == die[0]:
        of = {"all_reduce": dist, "replace": os, "fsync": os}[die[1]]
        real, calls = getattr(of, die[1]), []

        def call(*args, **more):
            calls.append(1)
            if len(calls) == die[2]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        setattr(of, die[1], call)
    place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    return script.train(script.parse_args(flags), *place)


@pytest.mark.parametrize("world_size, workers", [(1, 2), (2, 0), (3, 1), (4, 2)])
def test_the_state_after_a_step_is_the_same_on_any_number_of_ranks(
    world_size, workers, tmp_path
):
    """So a resumed epoch is the epoch that would have been, bit for bit."""
    wanted, found = tmp_path / "one.pt", tmp_path / "many.pt"
    more = [f"--workers={workers}"] if workers else []
    for ranks_, path, flags in (1, wanted, []), (world_size, found, more):
        with Ranks(ranks_) as ranks:
            ranks.run(train, args_for(path, "--stop=20", *flags), quiet=True)
    one, many = (torch.load(p, weights_only=True) for p in (wanted, found))
    assert torch.equal(one.pop("pairs"), many.pop("pairs"))
    assert one == many and one["step"] == 20


def test_whatever_is_killed_and_whoever_goes_on_each_sample_counts_once(tmp_path):
    """SIGKILL at random moments, also inside save(), then other ranks and workers."""
    dice, path = random.Random(4), tmp_path / "x.pt"
    killed = 0
    while True:
        world_size, workers = dice.randint(1, 4), dice.randint(0, 2)
        flags = [f"--workers={workers}"] if workers else []
        flags += ["--resume"] if path.exists() else []
        call = dice.choice(["all_reduce", "all_reduce", "replace", "fsync"])
        rank = 0 if call != "all_reduce" else dice.randrange(world_size)
        moment = dice.randint(1, 12) if call == "all_reduce" else 1
        die = (rank, call, moment) if killed < 10 else None
        with Ranks(world_size) as ranks:
            try:
                found = ranks.run(train, args_for(path, *flags), die, quiet=True)
                break
            except RanksError:
                killed += 1
    assert killed == 10
    text = script.read_text()[0][: 6144 * script.SIZE + 1]
    assert all(torch.equal(pairs, script.count(text[None])) for pairs in found)
    left = {name for name in os.listdir(tmp_path) if name != "x.pt"}
    assert left <= {"x.pt.new"}  # of a rank that was killed while it wrote


def test_a_batch_that_is_learned_twice_is_noticed():
    """The counts are a witness: no sample could be replaced by another one."""
    text = script.read_text()[0][: 6144 * script.SIZE + 1]
    whole = script.count(text[None])
    parts = script.count(text[: 6144 * script.SIZE].view(-1, script.SIZE)[:5])
    assert not torch.equal(whole, whole + parts)


def test_a_real_job_stops_and_goes_on_with_another_number_of_ranks(tmp_path):
    """The page's two commands, with the lines that it shows."""
    path = f"--checkpoint={tmp_path / 'x.pt'}"
    first = launch("ch9_data", 2, path, "--stop", "50", "--workers", "2").lines[0]
    second = launch("ch9_data", 3, path, "--resume").lines[0]
    steps = [int(line.split("step=")[1].partition(":")[0]) for line in first]
    assert steps == [20, 40]
    assert second[0].startswith("[rank 0/3] step=60: ")
    assert second[-1].endswith("its counts are those of the whole text: True")


@pytest.mark.parametrize(
    "flags, why",
    [
        (["--resume", "--seed=1"], "it is of {'seed': 0, 'epoch': 1, 'lanes': 8}, not"),
        (["--resume", "--checkpoint={}/no.pt"], "No such file or directory: change"),
        (["--resume", "--checkpoint={}/bad.pt"], "not what this script writes: change"),
        ([], "x.pt exists: go on with --resume, or name another"),
    ],
    ids=str,
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_a_sentence(flags, why, tmp_path):
    """Before anything is trained, and without touching it."""
    run = {"seed": 0, "epoch": 1, "lanes": 8}
    torch.save({"run": run, "step": 0, "lanes": {}}, tmp_path / "x.pt")
    (tmp_path / "bad.pt").write_bytes(b"nothing")
    flags = [f"--checkpoint={tmp_path / 'x.pt'}", *(f.format(tmp_path) for f in flags)]
    with pytest.raises(SystemExit) as end:
        args = script.parse_args(flags)
        names = ("seed", "epoch", "lanes")
        script.begin(args, {name: getattr(args, name) for name in names})
    assert why in end.value.code and len(end.value.code.splitlines()) == 1
