"""Chapter 3 resumes a run to the last bit, and only with every piece of its state."""

import contextlib
import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from allranks import Ranks
from allranks.base.paths import ROOT
from allranks.openings import ch3_save_load as picture
from scripts import ch3_resume

checkpoint = ch3_resume.checkpoint

NUM_STEPS = 18  # 3 epochs of 240 samples, 20 on each of 2 ranks


@pytest.fixture(scope="module")
def crews():
    """Yield one group of live ranks for each world size."""
    with contextlib.ExitStack() as stack:
        yield {size: stack.enter_context(Ranks(size)) for size in (1, 2, 3)}


def run_train(path, calls):
    """Run each call of train() on a live rank with a slow disk; return the losses."""
    import time

    import torch

    from scripts import ch3_resume

    def save_slowly(*what):
        time.sleep(0.05)  # so that a rank which doesn't wait reads the old file
        save(*what)

    checkpoint = ch3_resume.checkpoint
    save, checkpoint.save = checkpoint.save, save_slowly
    args, device = SimpleNamespace(checkpoint=path), torch.device("cpu")
    try:
        return [ch3_resume.train(args, device, **call) for call in calls]
    finally:
        checkpoint.save = save


@pytest.fixture
def train(crews, tmp_path):
    """Return a function that runs train() on W ranks: losses (W, steps) per call."""

    def run(world_size, *calls):
        path = str(tmp_path / "resume.pt")
        found = crews[world_size].run(run_train, path, calls)
        return [torch.stack(losses) for losses in zip(*found, strict=True)]

    return run


@pytest.mark.parametrize("world_size", [1, 2])
def test_resumes_to_the_bit_from_any_step(world_size, train):
    """A run resumes from every step: mid-epoch, at its end, at a new learning rate."""
    num_steps = NUM_STEPS * 2 // world_size
    stops = range(1, num_steps, 1 if world_size == 2 else 7)
    calls = [{}]
    for stop in stops:
        calls += [{"stop": stop}, {"resume": True}]
    whole, *parts = train(world_size, *calls)
    assert whole.shape == (world_size, num_steps)
    for stop, first, rest in zip(stops, parts[::2], parts[1::2], strict=True):
        assert torch.equal(torch.cat([first, rest], dim=1), whole), f"{stop=}"


def test_on_three_ranks_only_rounding_differs(train):
    """On three ranks DDP's first step after a restart sums in another order."""
    whole, _, rest = train(3, {}, {"stop": 5}, {"resume": True})
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "piece, first",
    [
        ("model", 8),
        ("optim", 9),
        ("schedule", 10),
        ("rng", 8),
        ("epoch", 8),
        ("step", 8),
    ],
)
def test_every_piece_matters(piece, first, train):
    """Without this piece the losses differ from the step on that the page shows."""
    whole, _, rest = train(2, {}, {"stop": 8}, {"resume": True, "forget": piece})
    differ = (rest[:, : NUM_STEPS - 8] != whole[:, 8:]).any(dim=0)
    assert 8 + differ.int().argmax() == first and differ.any()


def test_each_rank_gets_its_own_random_numbers_back(train, tmp_path):
    """Each rank's random state is in the file, which loads with weights_only."""
    train(2, {"stop": 3})
    state = torch.load(tmp_path / "resume.pt", weights_only=True)
    assert set(state) == {"model", "optim", "schedule", "rng", "epoch", "step"}
    assert len(state["rng"]) == 2
    assert not state["rng"][0][1].equal(state["rng"][1][1])
    assert not any(key.startswith("module.") for key in state["model"])


def run_with_states(path, stop):
    """Return the final states of torch's and the loader's generator on a live rank."""
    import torch

    from scripts import ch3_resume

    loaders, make = [], ch3_resume.DataLoader

    def remember(*args, **kwargs):
        loaders.append(make(*args, **kwargs))
        return loaders[-1]

    ch3_resume.DataLoader = remember
    args, device, states = SimpleNamespace(checkpoint=path), torch.device("cpu"), []
    try:
        for call in {}, {"stop": stop}, {"resume": True}:
            ch3_resume.train(args, device, **call)
            own = loaders[-1].generator.get_state()
            states.append((torch.get_rng_state(), own))
    finally:
        ch3_resume.DataLoader = make
    return states


@pytest.mark.parametrize("stop", [6, 8])
def test_the_loaders_generator_goes_on(stop, crews, tmp_path):
    """The loader's generator resumes too: workers and shuffles draw from it."""
    for whole, _, rest in crews[2].run(
        run_with_states, str(tmp_path / "resume.pt"), stop
    ):
        for one, other in zip(whole, rest, strict=True):
            assert one.equal(other)


def test_another_number_of_ranks_is_refused(crews, train, tmp_path):
    """Every rank refuses it in the same sentence."""
    train(2, {"stop": 3})

    def refused(path):
        try:
            run_train(path, [{"resume": True}])
        except SystemExit as end:
            return str(end)

    said = crews[3].run(refused, str(tmp_path / "resume.pt"))
    assert said == [f"2 ranks wrote {tmp_path / 'resume.pt'}: start as many"] * 3


def test_an_impossible_place_is_refused(tmp_path):
    """A path that can't be written is refused before any training."""
    with pytest.raises(SystemExit, match=r"--checkpoint .*: No such file"):
        ch3_resume.parse_args(["--checkpoint", str(tmp_path / "missing" / "a.pt")])


@pytest.mark.parametrize(
    "stop, last", [(0, 65536), (-1, 65536), (NUM_STEPS, 17), (99, 17)]
)
def test_an_impossible_stop_is_refused(stop, last, tmp_path, monkeypatch):
    """The refusal comes before the first step, and names the possible ones."""
    monkeypatch.setattr(ch3_resume, "train", None)  # it is not called
    flags = f"--stop={stop}", f"--checkpoint={tmp_path / 'a.pt'}"
    with pytest.raises(SystemExit, match=f"^--stop {stop}: must be 1 to {last}$"):
        ch3_resume.compare(ch3_resume.parse_args(flags), 0, 2, torch.device("cpu"))
    assert not list(tmp_path.iterdir())


class ShortFile(io.FileIO):
    """A raw file that writes 4 KiB per call at most, as Linux does 2 GiB - 4 KiB."""

    def write(self, data):
        """Write at most 4 KiB, and return how many bytes were written."""
        return super().write(memoryview(data).cast("B")[:4096])


def open_short(path, mode, buffering=-1):
    """Open a ShortFile as open() would."""
    raw = ShortFile(path, mode.replace("b", ""))
    return raw if buffering == 0 else io.BufferedWriter(raw)


class TestSave:
    """The file under the checkpoint's name is whole, whatever happens during a save."""

    def test_a_write_that_takes_less_is_asked_again(self, tmp_path, monkeypatch):
        """Short writes, as they occur above 2 GiB, lose nothing."""
        monkeypatch.setattr(checkpoint, "open", open_short, raising=False)
        state = {"weight": torch.arange(100_000)}
        checkpoint.save(str(tmp_path / "last.pt"), state)
        found = torch.load(tmp_path / "last.pt", weights_only=True)
        assert torch.equal(found["weight"], state["weight"])
        assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]

    @pytest.mark.parametrize("num", [1, 100_000], ids=["at the flush", "at a write"])
    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
    def test_a_full_disk(self, num, tmp_path):
        """A full disk gives one sentence; the old file stays, and no new one does."""
        path = tmp_path / "last.pt"
        checkpoint.save(str(path), {"epoch": 1})
        os.symlink("/dev/full", f"{path}.new")
        with pytest.raises(SystemExit) as refusal:
            checkpoint.save(str(path), {"weight": torch.ones(num)})
        assert re.fullmatch(
            r"\S+last.pt is not saved: No space left on device: make room or name "
            "another",
            refusal.value.code,
        )
        assert torch.load(path, weights_only=True) == {"epoch": 1}
        assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]

    @pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError])
    def test_a_crash_in_the_middle(self, fault, tmp_path, monkeypatch):
        """The error is raised, the old file stays, and no half-written one does."""
        path = tmp_path / "last.pt"
        checkpoint.save(str(path), {"epoch": 1})

        def crash(state, file):
            file.write(b"half")
            raise fault

        monkeypatch.setattr(torch, "save", crash)
        with pytest.raises(fault):
            checkpoint.save(str(path), {"epoch": 2})
        assert torch.load(path, weights_only=True) == {"epoch": 1}
        assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_more_than_one_write_can_take(tmp_path):
    """A tensor with 8 KiB more than Linux writes at once is saved whole."""
    weight = torch.ones(2_147_487_744, dtype=torch.uint8)
    weight[-1] = 2
    checkpoint.save(str(tmp_path / "large.pt"), {"weight": weight})
    assert os.path.getsize(tmp_path / "large.pt") > weight.nbytes
    found = torch.load(tmp_path / "large.pt", weights_only=True, mmap=True)
    assert torch.equal(found["weight"], weight)


@pytest.mark.parametrize("stop, epoch, step", [(8, 1, 2), (6, 0, 6)])
def test_the_file_names_the_epoch_it_is_in_and_the_steps_done(
    stop, epoch, step, crews, tmp_path
):
    """A run that stops within an epoch saves that epoch's number, as the page says."""
    path = str(tmp_path / "resume.pt")
    crews[2].run(run_train, path, [{"stop": stop}])
    state = torch.load(path, weights_only=True)
    assert (state["epoch"], state["step"]) == (epoch, step)
    page = (Path(ch3_resume.__file__).parents[1] / "book/ch3_save_load.md").read_text()
    assert "it saves that epoch's own number, and how" in page
    assert "Save the number of the epoch that comes *next*" not in page


def test_the_opening_shows_what_the_script_leaves_out_in_turn():
    """Its run loses one piece after another; the picture's file has as many."""
    (record,) = ROOT.glob("book/_runs/*ch3_resume.py.txt")
    lost = re.findall(r"lost (\w+): off", record.read_text("utf8"))
    assert len(lost) == len(picture.FILE)
