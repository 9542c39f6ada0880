"""Shards are fetched once, and a broken one is noticed by its index."""

import fcntl
import hashlib
import multiprocessing
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import pytest

from allranks import Ranks, RanksError
from allranks.base.paths import ROOT
from scripts import ch9_shards as script
from tests.ranks import run_script

TEXTS = [b"x" * 500, b"some", b"", b"one more\n" * 60]


def fetch(source, path, queue):
    """Fetch a file, and say whether this process copied it."""
    queue.put(script.fetch(source, path))


def test_one_of_many_processes_copies_the_file(tmp_path):
    """The others wait for it, so all of them find it whole."""
    (tmp_path / "far").write_bytes(b"data" * 10_000)
    source, path = str(tmp_path / "far"), str(tmp_path / "near")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    every = [context.Process(target=fetch, args=(source, path, queue)) for _ in "12345"]
    for process in every:
        process.start()
    assert sorted(queue.get() for _ in every) == [False] * 4 + [True]
    for process in every:
        process.join()
    assert (tmp_path / "near").read_bytes() == b"data" * 10_000


def test_it_waits_for_the_lock_and_takes_over_from_one_that_was_killed(tmp_path):
    """Half a file under another name, and no lock: nothing has to be tidied up."""
    (tmp_path / "far").write_bytes(b"whole")
    (tmp_path / "near.new").write_bytes(b"wh")
    source, path, done = str(tmp_path / "far"), str(tmp_path / "near"), []
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(
            target=lambda: done.append(script.fetch(source, path))
        )
        thread.start()
        thread.join(0.2)
        assert done == [] and not (tmp_path / "near").exists()
    thread.join()
    assert done == [True] and (tmp_path / "near").read_bytes() == b"whole"


def test_a_tar_gives_back_what_was_written(tmp_path):
    path = str(tmp_path / "x.tar")
    script.write_tar(path, TEXTS)
    found = list(script.read_tar(path, 2 * len(TEXTS)))
    assert [sample["txt"] for sample in found] == TEXTS
    assert [int(sample["len"]) for sample in found] == [len(t) for t in TEXTS]


@pytest.mark.parametrize("block", range(1, 16))
def test_a_tar_cut_at_any_header_is_shorter_in_silence_unless_counted(block, tmp_path):
    """tarfile takes it for the end; in the middle of a file it raises."""
    path = tmp_path / "x.tar"
    script.write_tar(str(path), [b"x" * 500] * 4)  # of a block each, and a header
    data = path.read_bytes()
    path.write_bytes(data[: 512 * block + 100])
    if block % 2:  # in the data
        with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
            list(script.read_tar(str(path)))
    else:
        found = list(script.read_tar(str(path)))
        assert len(found) == -(-block // 4)
        assert ("len" in found[-1]) == (block % 4 == 0)  # or only a part of a sample
        with pytest.raises(ValueError, match=f"{block // 2} files, not 8"):
            list(script.read_tar(str(path), 8))


def test_tokens_pickle_as_a_name_and_read_the_same(tmp_path):
    path = str(tmp_path / "x.bin")
    np.arange(100_000, dtype="<u2").tofile(path)
    tokens = script.Tokens(path, "<u2")
    assert len(pickle.dumps(tokens)) < 200 + len(path)
    assert len(pickle.dumps(tokens.tokens)) > 200_000
    again = pickle.loads(pickle.dumps(tokens))
    assert np.array_equal(again.tokens, tokens.tokens)
    assert isinstance(again.tokens, np.memmap)


def test_the_script_says_what_breaks_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lines = run_script("ch9_shards", 3)[0]
    said = [line.partition("] ")[2] for line in lines]
    assert said[0] == "3 ranks, 5 shards: 5 copies"
    assert said[1] == "tar with a flipped bit, with an index: 40"  # as if it were good
    assert said[2:8] == [
        "tar cut in the last header, alone: 40",
        "tar cut in the last header, with an index: ValueError: 79 files, not 80",
        "tar cut in a file, alone: ReadError: unexpected end of data",
        "tar cut in a file, with an index: ReadError: unexpected end of data",
        "tar cut in a header, alone: 20",
        "tar cut in a header, with an index: ValueError: 40 files, not 80",
    ]
    assert said[8] == "bin: token 70, or 17920 in another order"
    assert said[9].startswith("bin: token 70000 becomes 4464, or OverflowError: ")
    assert not list(tmp_path.glob("ch9-*"))


def test_more_texts_than_there_are_is_refused():
    with pytest.raises(RanksError, match="5 shards x 400 texts: there are 786"):
        run_script("ch9_shards", 2, "--texts", "400")


def test_folders_and_an_empty_tar_are_no_samples(tmp_path):
    """``tar cf x.tar data`` writes entries for folders, too."""
    for name in "a", "b":
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "x.txt").write_bytes(name.encode())
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.add(tmp_path / "in", "data")
    found = list(script.read_tar(str(tmp_path / "x.tar"), 2))
    assert sorted(sample["txt"] for sample in found) == [b"a", b"b"]
    tarfile.open(tmp_path / "none.tar", "w").close()
    assert list(script.read_tar(str(tmp_path / "none.tar"), 0)) == []


def test_a_flipped_bit_is_silent_in_a_text_and_ends_the_shard_in_a_header(tmp_path):
    """A count finds the second one only; a digest of the file finds both."""
    path = tmp_path / "x.tar"
    script.write_tar(str(path), [b"x" * 500] * 4)
    whole = path.read_bytes()
    for place, texts, count in (
        (2048 * 2 + 700, [b"x" * 500] * 2 + [b"y" + b"x" * 499, b"x" * 500], 8),
        (2048 * 2 + 100, [b"x" * 500] * 2, 4),
    ):
        bad = bytearray(whole)
        bad[place if count == 4 else 2048 * 2 + 512] ^= 1
        path.write_bytes(bad)
        assert [sample["txt"] for sample in script.read_tar(str(path))] == texts
        if count == 8:
            assert len([*script.read_tar(str(path), 8)]) == 4  # as if it were good
        else:
            with pytest.raises(ValueError, match="4 files, not 8"):
                list(script.read_tar(str(path), 8))
        assert hashlib.sha256(bad).digest() != hashlib.sha256(whole).digest()


SLOW = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from scripts import ch9_shards as script
script.breaks = lambda *args: time.sleep(60)
with script.job.ranks(args := script.parse_args()) as place:
    script.main(args, *place)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_ended_leaves_no_folder(number, tmp_path, monkeypatch):
    """Ctrl-C and a scheduler's SIGTERM come while files are there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "driver.py").write_text(SLOW)
    launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"
    command = [sys.executable, *launcher, "driver.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as job:
        while not list(tmp_path.glob("ch9-*/4.tar")):
            assert job.poll() is None, job.stderr.read()
            time.sleep(0.05)
        job.send_signal(number)
        job.communicate(timeout=60)
    assert job.returncode != 0
    assert not list(tmp_path.glob("ch9-*"))


def test_a_full_disk_is_told_in_a_sentence():
    """As write_tar would find it."""

    def write(path, texts):
        raise OSError(28, "No space left on device")

    def play():
        from scripts import ch9_shards as script

        script.write_tar = write
        script.main(script.parse_args([]), 0, 1, "cpu")

    with Ranks(1) as ranks, pytest.raises(RanksError) as end:
        ranks.run(play, quiet=True)
    assert "No space left on device: make room, or change TMPDIR" in str(end.value)
