"""Output is written completely or not at all, and overwritten only on request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from allranks.base.paths import ROOT
from allranks.checkpoint.command import main
from tests.allranks.checkpoint.files import WEIGHT, refusal


class TestWrite:
    """Output is complete or not there, and overwritten only on request."""

    @pytest.fixture
    def source(self, saved):
        return saved({"module.w": WEIGHT})

    @pytest.mark.parametrize("old", ["file", "link", "dangling", "folder", "device"])
    def test_what_is_there_stays(self, old, source, tmp_path):
        """Nothing is overwritten; folders and devices not even with --force."""
        out = Path(os.devnull) if old == "device" else tmp_path / "out.pt"
        if old in ("file", "link"):
            (tmp_path / "precious").write_text("precious")
        if old == "file":
            (tmp_path / "precious").rename(out)
        elif old in ("link", "dangling"):
            out.symlink_to("precious" if old == "link" else "nowhere")
        elif old == "folder":
            out.mkdir()
        assert "exists" in refusal("convert", source, out)
        assert not (tmp_path / "nowhere").exists()
        if old in ("file", "link"):
            assert out.read_text() == "precious"
        if old in ("folder", "device"):
            assert "exists" in refusal("convert", source, out, "--force")
            assert out.is_dir() or out.is_char_device()
            return
        if old == "dangling":  # --force has no file to replace
            assert "exists" in refusal("convert", source, out, "--force")
            return
        main(["convert", str(source), str(out), "--force"])
        assert list(torch.load(out)) == ["w"]
        assert out.is_symlink() == (old == "link")

    @pytest.mark.parametrize("kind", ["itself", "symlink", "hard link"])
    def test_never_onto_the_input(self, kind, source, tmp_path):
        """Not even --force allows it, as what is left out would be lost."""
        out, before = tmp_path / "other.pt", source.read_bytes()
        if kind == "itself":
            out = source
        elif kind == "symlink":
            out.symlink_to(source)
        else:
            os.link(source, out)
        assert "IN is OUT" in refusal("convert", source, out, "--force")
        assert source.read_bytes() == before

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("unnamed", [False, True])
    def test_a_full_disk_leaves_what_was(
        self, force, unnamed, source, tmp_path, monkeypatch
    ):
        """If space runs out halfway, the sentence says so and old files stay."""
        if not unnamed:
            monkeypatch.delattr(os, "O_TMPFILE", raising=False)  # as on macOS
        if force:
            (tmp_path / "out.pt").write_text("old")
        before = sorted(os.listdir(tmp_path))

        def fill(state, file):
            file.write(b"half")
            try:
                raise OSError(28, "No space left on device")
            except OSError:
                raise RuntimeError("unexpected pos 704 vs 598")  # noqa: B904

        monkeypatch.setattr(torch, "save", fill)
        flags = ["--force"] if force else []
        said = refusal("convert", source, tmp_path / "out.pt", *flags)
        assert "No space left" in said
        assert sorted(os.listdir(tmp_path)) == before
        assert not force or (tmp_path / "out.pt").read_text() == "old"

    @pytest.mark.parametrize("unnamed", [False, True])
    def test_a_file_that_comes_meanwhile_stays(
        self, unnamed, source, tmp_path, monkeypatch
    ):
        """Another process may take the name between the first look and the end."""
        if not unnamed:
            monkeypatch.delattr(os, "O_TMPFILE", raising=False)
        out, save = tmp_path / "out.pt", torch.save

        def race(state, file):
            save(state, file)
            out.write_text("theirs")

        monkeypatch.setattr(torch, "save", race)
        assert "exists" in refusal("convert", source, out)
        assert out.read_text() == "theirs"
        assert sorted(os.listdir(tmp_path)) == ["in.pt", "out.pt"]

    def test_permissions_are_those_of_any_new_file(self, source, tmp_path):
        """They are not those of a temporary file, which only its owner can read."""
        main(["convert", str(source), str(tmp_path / "out.pt")])
        (tmp_path / "new").touch()
        modes = [(tmp_path / name).stat().st_mode for name in ("out.pt", "new")]
        assert modes[0] == modes[1]

    @pytest.mark.parametrize("place", ["missing/out.pt", "/proc/out.pt"])
    def test_an_impossible_place(self, place, source, tmp_path):
        """A folder that does not exist or takes no files is refused by name."""
        assert f"cannot write {tmp_path / place}" in refusal(
            "convert", source, tmp_path / place
        )


KILLED = """
import os, signal, sys
import torch
from allranks.checkpoint.command import main

def half(state, file):
    file.write(bytes(10**6))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

torch.save = half
for out in sys.argv[2:]:
    if os.fork():
        assert os.wait()[1] == signal.SIGKILL
    else:
        main(["convert", sys.argv[1], out, "--force"])
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name: Linux")
def test_killed_in_the_middle_of_writing(saved, tmp_path):
    """The old output stays, there is no new one, and nothing else is left."""
    path = saved({"w": WEIGHT})
    (tmp_path / "old.pt").write_text("old")
    names = [path, tmp_path / "old.pt", tmp_path / "new.pt"]
    command = [sys.executable, "-c", KILLED, *map(str, names)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["in.pt", "old.pt"]
    assert (tmp_path / "old.pt").read_text() == "old"
