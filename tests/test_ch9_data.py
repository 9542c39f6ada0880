"""Each sample is seen once per epoch: on any ranks, and after any kill."""

import collections
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from allranks import Ranks, RanksError
from allranks.base.paths import ROOT
from scripts import ch9_data as script
from tests.ranks import run_script


def stream(num, lanes, batch, place=(0, 1), done=0, key="7 1") -> script.Stream:
    """Return what a reader reads of num samples, each of which is its own number."""
    data = torch.arange(num)[:, None]
    return script.Stream(data, script.deal(num, lanes, key), key, batch, place, done)


def steps(num, lanes, readers, batch, done=0) -> list[list[int]]:
    """Return what all readers together read in each step."""
    every = [stream(num, lanes, batch, (r, readers), done) for r in range(readers)]
    both = zip(*every, strict=True)  # all end together
    return [sorted(torch.cat(step).flatten().tolist()) for step in both]


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(1, 600),
    lanes=st.integers(1, 40),
    readers=st.integers(1, 14),
    batch=st.integers(1, 40),
)
def test_each_sample_is_read_once_and_in_the_same_step_by_any_number_of_readers(
    num, lanes, readers, batch
):
    """Also with more readers than lanes, or lanes than shards: some read nothing."""
    found = steps(num, lanes, readers, batch)
    assert sorted(itertools.chain(*found)) == list(range(num))
    assert found == steps(num, lanes, 1, batch)


@settings(max_examples=60, deadline=None)
@given(
    num=st.integers(30, 600),
    lanes=st.integers(1, 8),
    readers=st.integers(1, 6),
    batch=st.integers(1, 20),
    data=st.data(),
)
def test_after_any_step_others_go_on_with_what_is_left(
    num, lanes, readers, batch, data
):
    """The number of steps that were trained is all that they have to know."""
    whole = steps(num, lanes, 1, batch)
    done = data.draw(st.integers(0, len(whole)))
    assert steps(num, lanes, readers, batch, done) == whole[done:]


@pytest.mark.parametrize(
    "how",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=str,
)
def test_a_stream_that_is_read_again_gives_all_samples_again(how):
    """A reader that keeps what it has used up would give a second epoch nothing."""
    loader = DataLoader(stream(500, 4, 7), None, **how)
    for _ in range(3):
        assert sorted(i for x in loader for i in x.flatten().tolist()) == [*range(500)]


def test_another_epoch_or_seed_has_another_order_and_the_buffer_mixes_shards():
    """The order is a new one, and neighbors in a file are no longer neighbors."""
    first, second = (
        [i for part in stream(6144, 8, 300, key=key) for i in part.flatten().tolist()]
        for key in ("0 1", "0 2")
    )
    assert first != second and sorted(first) == sorted(second) == [*range(6144)]
    apart = [abs(a - b) for a, b in itertools.pairwise(first[:300])]
    assert sum(a == 1 for a in apart) < 15
    one, other = ([*script.shuffle(range(99), key)] for key in ("0 1 0", "0 1 1"))
    assert one != other  # two lanes do not draw alike


@given(st.integers(0, 300), st.integers(1, 80), st.integers(0, 99))
def test_no_sample_leaves_the_buffer_before_it_was_read(num, size, seed):
    """It may be late, but it is never more than the buffer's size too early."""
    usual, script.BUFFER = script.BUFFER, size
    try:
        found = [*script.shuffle(iter(range(num)), str(seed))]
    finally:
        script.BUFFER = usual
    assert sorted(found) == [*range(num)]
    assert all(sample < place + size for place, sample in enumerate(found))


def test_batches_in_any_order_mix_the_parts_of_different_steps():
    """``in_order=False`` loses no sample, but a step is no longer a step."""

    class Slow(script.Stream):
        def __iter__(self):
            for part in super().__iter__():
                time.sleep(0.005 * (script.get_worker_info().id == 0))
                yield part

    data, lanes = torch.arange(600)[:, None], script.deal(600, 8, "k")
    slow = Slow(data, lanes, "k", 4, (0, 1))
    whole = [sorted(part.flatten().tolist()) for part in stream(600, 8, 4, key="k")]
    for in_order in True, False:
        parts = [*DataLoader(slow, None, num_workers=2, in_order=in_order)]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        found = [sorted(torch.cat(pair).flatten().tolist()) for pair in pairs]
        assert sorted(itertools.chain(*found)) == [*range(600)]
        assert (found == whole) == in_order


def train(flags, die=None, log=None):
    """Train on a live rank, and log each step's samples; perhaps kill something.

    ``die`` is (victim, call, moment): at call number ``moment`` of ``call``, the victim
    gets SIGKILL. It is a rank, "all" ranks, or a "worker" of rank 0.
    """
    import json
    import os
    import signal

    import psutil
    import torch
    import torch.distributed as dist

    from scripts import ch9_data as script

    torch.multiprocessing.set_start_method("fork", force=True)  # as under torchrun
    rank, world_size = dist.get_rank(), dist.get_world_size()
    victim, name, moment = die or (None, None, 0)
    if die and (victim == rank or victim == "all" or (victim == "worker" and not rank)):
        of = {"all_reduce": dist, "replace": os, "fsync": os}[name]
        real, calls = getattr(of, name), []

        def call(*args, **more):
            calls.append(1)
            if len(calls) == moment:
                me = psutil.Process()
                for process in me.children() if victim == "worker" else [me]:
                    os.kill(process.pid, signal.SIGKILL)
            return real(*args, **more)

        setattr(of, name, call)
    if log:
        path, segment = log
        data = script.read_text()[0].unfold(0, script.SIZE + 1, script.SIZE)[:6144]
        number = {bytes(w.tolist()): i for i, w in enumerate(data)}
        steps, count, resume = [], script.count, script.resume

        def resumed(*args):
            state = resume(*args)
            steps.append(state["step"])
            return state

        def counted(windows):
            if not steps:
                steps.append(0)  # the counts of nothing, with which a state begins
            elif len(windows) < len(data):  # and not those of the whole text
                steps.append(steps[-1] + 1)
                samples = [number[bytes(w.tolist())] for w in windows]
                with open(path, "a") as file:  # a line in one write
                    file.write(json.dumps([segment, steps[-1], samples]) + "\n")
            return count(windows)

        script.resume, script.count = resumed, counted
    return script.train(script.parse_args(flags), rank, world_size, torch.device("cpu"))


def survivors(log) -> tuple[list[list[int]], int]:
    """Return what the model has learned in each step, and how often a job went on.

    The steps of a segment count up to where the next one began.
    """
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    first, found = {}, collections.defaultdict(list)
    for segment, step, samples in lines:
        first[segment] = min(step, first.get(segment, step))
        found[segment, step] += samples
    ends = [*first.values(), max(step for _, step, _ in lines) + 1][1:]
    learned = []
    for (segment, start), end in zip(sorted(first.items()), ends, strict=True):
        learned += [sorted(found[segment, step]) for step in range(start, end)]
    return learned, sum(start > 1 for start in first.values())


def check(log, path, batch) -> int:
    """Compare a job that was killed with one that was not; return its resumes."""
    learned, resumed = survivors(log)
    key = "0 1"
    whole = [
        sorted(part.flatten().tolist()) for part in stream(6144, 8, batch, key=key)
    ]
    assert learned == whole
    state = torch.load(path, weights_only=True)
    text = script.read_text()[0][: 6144 * script.SIZE + 1]
    assert torch.equal(state["pairs"], script.count(text[None]))
    assert state["step"] == len(whole)
    return resumed


VICTIMS = [0, "worker", "all", 1, 0, "worker", 2, "all"]


def test_whatever_is_killed_and_whoever_goes_on_each_sample_counts_once(tmp_path):
    """SIGKILL to a rank, its workers or all, also inside save(); then others go on."""
    dice, path, log = random.Random(4), tmp_path / "x.pt", tmp_path / "log"
    rounds, saves = [*VICTIMS, None], itertools.cycle(["fsync", "replace"])
    for segment, victim in enumerate(rounds):
        least = victim + 1 if isinstance(victim, int) else 1
        world_size = dice.randint(least, 4)
        workers = dice.randint(victim == "worker", 2)
        flags = [f"--checkpoint={path}", "--batch-size=4"]
        flags += [f"--workers={workers}"] if workers else []
        flags += ["--resume"] if segment else []
        call = ("all_reduce", dice.randint(21, 30))  # a save is behind it
        if victim == 0:
            call = (next(saves), 2)  # in the second save
        die = None if victim is None else (victim, *call)
        with Ranks(world_size) as ranks:
            ends = (
                contextlib.nullcontext() if die is None else pytest.raises(RanksError)
            )
            with ends:
                ranks.run(train, flags, die, (str(log), segment), quiet=True)
    assert check(log, path, 4) == len(VICTIMS)  # each of them was resumed
    assert {f.name for f in tmp_path.iterdir()} <= {"x.pt", "x.pt.new", "log"}


DRIVER = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from scripts import ch9_data as script
from tests.test_ch9_data import train
script.job.watch(os.getppid())
flags, count = sys.argv[3:], script.count
def slowly(windows):  # or the epoch ends before the twentieth kill
    time.sleep(0.025)
    return count(windows)
script.count = slowly
with script.job.ranks(script.parse_args(flags)):
    train(flags, None, (sys.argv[1], int(sys.argv[2])))
"""


def children(process: psutil.Process, word="") -> list[psutil.Process]:
    """Return the children that have a word in their command, or none if it ended."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in process.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word in part for part in child.cmdline()):
                    found.append(child)
    return found


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_kills_at_any_moment_of_real_jobs(tmp_path):
    """Of ranks, workers, launchers and all at once, whenever it is."""
    dice, path, log = random.Random(), tmp_path / "x.pt", tmp_path / "log"
    (tmp_path / "driver.py").write_text(DRIVER)
    log.touch()
    kills, segment = collections.Counter(), 0
    while True:
        segment += 1
        world_size, workers = dice.randint(1, 4), dice.randint(0, 3)
        flags = [f"--checkpoint={path}", "--batch-size=1"]
        flags += [f"--workers={workers}"] if workers else []
        flags += ["--resume"] if path.exists() else []
        command = f"torchrun --standalone --nproc-per-node {world_size} driver.py"
        command = [*command.split(), str(log), str(segment), *flags]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        job = psutil.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE)
        begun = log.stat().st_size
        while log.stat().st_size == begun and job.poll() is None:
            time.sleep(0.01)
        victim = dice.choice(["rank", "worker", "launcher", "all"])
        if kills.total() < 20:
            time.sleep(dice.uniform(0, 1.5))
            ranks = children(job, "driver.py")
            readers = [p for rank in ranks for p in children(rank)]
            chosen = {"rank": ranks, "worker": readers, "launcher": [job]}
            chosen = chosen.get(victim) or ranks  # there may be no workers
            if victim != "all":
                chosen = [dice.choice(chosen)]
            else:
                chosen = [job, *ranks, *readers]
            for process in chosen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            kills[victim] += 1
        else:
            ranks = readers = []
        code = job.wait(timeout=100)
        psutil.wait_procs([*ranks, *readers], timeout=15)
        assert not any(p.is_running() for p in [*ranks, *readers])
        if code == 0:
            break
    assert kills.total() == 20
    resumed = check(log, path, 1)
    print(kills, f"resumed {resumed} times in {segment} starts")
    assert resumed >= 15  # the others had not saved yet, or nothing since


def test_a_batch_that_is_learned_twice_is_noticed():
    """The counts are a witness: no sample could be replaced by another one."""
    text = script.read_text()[0][: 6144 * script.SIZE + 1]
    whole = script.count(text[None])
    windows = text.unfold(0, script.SIZE + 1, script.SIZE)
    assert torch.equal(script.count(windows), whole)
    assert not torch.equal(script.count(torch.cat([windows, windows[:1]])), whole)


def args_for(path, *flags):
    """Return the script's flags."""
    return [f"--checkpoint={path}", "--batch-size=40", *flags]


@pytest.mark.parametrize("world_size, workers", [(1, 2), (2, 0), (3, 1), (4, 2)])
def test_the_file_after_a_step_is_the_same_on_any_number_of_ranks(
    world_size, workers, tmp_path
):
    """Byte for byte: nothing in it tells who wrote it."""
    wanted, found = tmp_path / "one.pt", tmp_path / "many.pt"
    more = [f"--workers={workers}"] if workers else []
    for ranks_, path, flags in (1, wanted, []), (world_size, found, more):
        with Ranks(ranks_) as ranks:
            ranks.run(train, args_for(path, "--stop=20", *flags), quiet=True)
    assert wanted.read_bytes() == found.read_bytes()
    state = torch.load(wanted, weights_only=True)
    assert state["step"] == 20 and state["run"].keys() == RUN.keys()


def test_a_lost_shard_ends_the_job_with_an_error(tmp_path):
    """The counts are compared, and wrong ones must not end with 0."""

    def lose(flags):
        import torch

        from scripts import ch9_data as script

        deal = script.deal
        script.deal = lambda *args: [*deal(*args)[:-1], []]
        script.train(script.parse_args(flags), 0, 1, torch.device("cpu"))

    with Ranks(1) as ranks, pytest.raises(RanksError, match="counts are not those of"):
        ranks.run(lose, args_for(tmp_path / "x.pt"), quiet=True)


def test_a_job_stops_and_goes_on_with_another_number_of_ranks(tmp_path):
    """The page's two commands, with the lines that it shows, and a second epoch."""
    path = f"--checkpoint={tmp_path / 'x.pt'}"
    first = run_script("ch9_data", 2, path, "--stop", "50", "--workers", "2")[0]
    second = run_script("ch9_data", 3, path, "--resume")[0]
    third = run_script("ch9_data", 1, path, "--resume", "--epochs", "2")[0]
    said = [line.partition("] ")[2] for line in [*first, *second, *third]]
    assert [line.partition(":")[0] for line in said[:4]] == [
        f"epoch=1 step={step}" for step in (20, 40, 60, 69)
    ]
    assert said[4] == "its counts are 1 x those of the whole text"
    assert said[5].startswith("epoch=2 step=20: 8064 windows")
    assert said[-1] == "its counts are 2 x those of the whole text"


def state_of(run, step=20):
    """Return what the script would save, with its digest."""
    pairs = torch.full((256, 256), step)
    state = {"run": run, "epoch": 1, "step": step, "pairs": pairs}
    return state | {"sha256": script.digest(state)}


RUN = {"seed": 0, "lanes": 8, "batch_size": 12, "buffer": 64, "text": "abc"}


def refusal(path, run):
    """Return the sentence with which a checkpoint is refused."""
    with pytest.raises(SystemExit) as end:
        script.resume(str(path), run)
    assert len(end.value.code.splitlines()) == 1
    assert end.value.code.startswith(f"--checkpoint {path}: ")
    return end.value.code


@pytest.mark.parametrize("name", RUN)
def test_a_checkpoint_of_another_run_is_refused(name, tmp_path):
    """Another seed, number of lanes, batch size, buffer or text: other steps."""
    path, run = tmp_path / "x.pt", RUN | {name: 99}
    script.checkpoint.save(str(path), state_of(RUN))
    assert script.resume(str(path), RUN)["step"] == 20
    assert refusal(path, run).endswith(
        f"of {RUN} instead of {run}: change flags or file"
    )


def test_one_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    """Wherever it is; torch.load itself does not look."""
    path, dice, refused, silent = tmp_path / "x.pt", random.Random(0), 0, 0
    script.checkpoint.save(str(path), state_of(RUN))
    whole, wanted = path.read_bytes(), script.digest(script.resume(str(path), RUN))
    ends = [dice.randrange(2000) for _ in range(40)]  # where zip and pickle are
    for place in [
        *ends,
        *(-1 - i for i in ends),
        *dice.choices(range(len(whole)), k=60),
    ]:
        bad = bytearray(whole)
        bad[place] ^= 1 << dice.randrange(8)
        path.write_bytes(bad)
        try:
            assert script.digest(script.resume(str(path), RUN)) == wanted
        except SystemExit:
            refused += 1
            with contextlib.suppress(Exception):
                torch.load(path, weights_only=True)
                silent += 1
    assert refused >= 80 and silent >= 60


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("pairs"),
        lambda state: state.pop("sha256"),
        lambda state: state.update(step=state["step"] + 1),
        lambda state: state.update(pairs=3),
    ],
)
def test_a_state_that_lacks_something_is_refused(damage, tmp_path):
    state = state_of(RUN)
    damage(state)
    script.checkpoint.save(str(tmp_path / "x.pt"), state)
    assert "damaged" in refusal(tmp_path / "x.pt", RUN)


def test_no_checkpoint_and_half_of_one_are_refused(tmp_path):
    assert "No such file or directory" in refusal(tmp_path / "no.pt", RUN)
    script.checkpoint.save(str(tmp_path / "x.pt"), state_of(RUN))
    half = (tmp_path / "x.pt").read_bytes()[:300_000]
    (tmp_path / "x.pt").write_bytes(half)
    assert "damaged, or no checkpoint" in refusal(tmp_path / "x.pt", RUN)


@pytest.mark.parametrize(
    "path, why",
    [
        ("{}/x.pt", "{}/x.pt exists: --resume it, or name another"),
        ("{}/no/such.pt", "No such file or directory: name a file that can be written"),
    ],
)
def test_a_path_that_will_not_do_is_refused_before_anything_starts(path, why, tmp_path):
    (tmp_path / "x.pt").touch()
    with pytest.raises(SystemExit) as end:
        script.parse_args([f"--checkpoint={path.format(tmp_path)}"])
    assert why.format(tmp_path) in end.value.code


def on_two_nodes(flags):
    """Train where rank 0 and rank 1 see different files."""
    import os

    import torch
    import torch.distributed as dist

    from scripts import ch9_data as script

    import tasks

    rank = dist.get_rank()
    if os.path.isdir(f"{flags[0]}/texts"):
        tasks.__file__ = f"{flags[0]}/texts/{rank}/x.py"
    mine = [f"--checkpoint={flags[0]}/{rank}.pt", *flags[1:]]
    return script.train(script.parse_args(mine), rank, 2, torch.device("cpu"))


def test_nodes_with_checkpoints_of_other_steps_are_refused(tmp_path):
    """Each is good, but together they would train on a mixture of two steps."""
    for rank, stop in enumerate((20, 40)):
        flags = args_for(tmp_path / f"{rank}.pt", f"--stop={stop}", "--batch-size=4")
        with Ranks(1) as ranks:
            ranks.run(train, flags, quiet=True)
    flags = [str(tmp_path), "--batch-size=4", "--resume"]
    before = [path.read_bytes() for path in sorted(tmp_path.glob("*.pt"))]
    with (
        Ranks(2) as ranks,
        pytest.raises(
            RanksError, match=r"--step differs between ranks: 20 on \[0\], 40"
        ),
    ):
        ranks.run(on_two_nodes, flags, quiet=True)
    assert before == [path.read_bytes() for path in sorted(tmp_path.glob("*.pt"))]


def test_nodes_with_different_texts_are_refused(tmp_path):
    """One letter is enough; and a text that is too short for the shards is, too."""
    text = (ROOT / "scripts" / "frankenstein.txt").read_bytes()
    for rank, one in enumerate((text, text.replace(b"the", b"The", 1))):
        (tmp_path / "texts" / str(rank)).mkdir(parents=True)
        (tmp_path / "texts" / str(rank) / "frankenstein.txt").write_bytes(one)
    with (
        Ranks(2) as ranks,
        pytest.raises(RanksError, match="--text differs between ranks: '"),
    ):
        ranks.run(on_two_nodes, [str(tmp_path)], quiet=True)
    for rank in range(2):
        path = tmp_path / "texts" / str(rank) / "frankenstein.txt"
        path.write_bytes(text[: 24 * 64])
    with Ranks(2) as ranks, pytest.raises(RanksError, match="1383 bytes are too few"):
        ranks.run(on_two_nodes, [str(tmp_path)], quiet=True)


PAGE = (ROOT / "book" / "ch9_data.md").read_text("utf8")


def table(head: str) -> list[list[str]]:
    """Return the rows of the page's table that begins with head."""
    lines = PAGE[PAGE.index(f"\n| {head}") + 1 :].splitlines()
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_page_draws_a_buffer_of_two_as_it_is(monkeypatch):
    """Five samples, and what is in the buffer before each is handed out."""
    monkeypatch.setattr(script, "BUFFER", 2)
    out, reads = [*script.shuffle(range(5), "k 0")], []
    held, rows = [0, 1], table("the buffer holds")
    for place, sample in enumerate(out):
        reads.append([", ".join(map(str, held)), str(sample)])
        held.remove(sample)
        held += [place + 2] if place + 2 < 5 else []
        reads[-1].append(str(place + 2) if place + 2 < 5 else "")
    assert rows == reads and out.index(0) == 2  # "came third"


def test_the_page_tells_which_lanes_a_worker_carries(monkeypatch):
    """Two ranks with two workers each, and three ranks without."""
    two, workers, three = ([int(cell) for cell in row[1:]] for row in table("lane |"))
    data, lanes = torch.arange(8)[:, None], [[range(i, i + 1)] for i in range(8)]
    for lane in range(8):
        info = collections.namedtuple("Info", "id num_workers")(workers[lane], 2)
        monkeypatch.setattr(script, "get_worker_info", lambda info=info: info)
        mine = script.Stream(data, lanes, "k", 1, (two[lane], 2))
        assert lane in torch.cat([*mine]).flatten().tolist()
        monkeypatch.setattr(script, "get_worker_info", lambda: None)
        mine = script.Stream(data, lanes, "k", 1, (three[lane], 3))
        assert lane in torch.cat([*mine]).flatten().tolist()


def test_the_pages_figures_of_its_lanes_are_these():
    """How long they are, and from which step on a step is smaller than 96."""
    lanes = script.deal(6144, 8, "0 1")
    sizes = [sum(map(len, shards)) for shards in lanes]
    parts = [len(part) for part in stream(6144, 8, 12, key="0 1")]
    small = next(step for step, size in enumerate(parts, 1) if size < 96)
    words = " ".join(PAGE.split())
    assert f"{min(sizes)} to {max(sizes)} windows. Step {small} is the first" in words
    assert f"the longest lane ends in step {len(parts)}." in words
    assert f"but the line says {sum(parts[:60]):,}." in words


def test_a_third_of_a_buffer_was_read_before_a_buffers_size_ago():
    """So going back by its size would lose them: (1 - 1/64)^64, for five keys."""
    old = []
    for seed in range(5):
        out = [*script.shuffle(range(6000), str(seed))]
        for done in range(500, 5500, 50):
            held = set(range(done + script.BUFFER)) - set(out[:done])
            old += [sum(sample < done for sample in held) / len(held)]
    wanted = (1 - 1 / script.BUFFER) ** script.BUFFER
    assert sum(old) / len(old) == pytest.approx(wanted, abs=0.02)
    assert f"{wanted:.0%}".replace("%", " %") in PAGE
