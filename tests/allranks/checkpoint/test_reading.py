"""Reading: a file is loaded or refused in one sentence, and runs no code."""

import argparse
import contextlib
import os
import pickle
import random
import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

from allranks.checkpoint.command import main
from tests.allranks.checkpoint.files import (
    WEIGHT,
    make_net,
    mutated,
    packed,
    refusal,
)


class Hostile:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class TestRefusals:
    """A refusal is one sentence about the cause; no file changes or appears."""

    @pytest.fixture
    def bad(self, tmp_path):
        """Return a function that makes one of several kinds of bad file."""

        def make(kind):
            path, good = tmp_path / "in.pt", packed({"w": torch.ones(99)})
            spot = good.index(torch.ones(99).numpy().tobytes())
            if kind == "missing":
                return path
            if kind == "folder":
                path.mkdir()
                (path / ".metadata").write_bytes(
                    pickle.dumps(Hostile(tmp_path / "ran"))
                )
                return path
            if kind == "pipe":
                os.mkfifo(path)
                return path
            if kind == "bomb":
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.writestr("archive/data/0", bytes(10**6))
                return path
            path.write_bytes(
                {
                    "empty": b"",
                    "text": b"dear model, please learn\n",
                    "cut": good[:-1],
                    "flipped": good[:spot] + b"\1" + good[spot + 1 :],
                    "module": packed(nn.Linear(1, 1)),
                    "hostile": packed({"w": WEIGHT, "x": Hostile(tmp_path / "ran")}),
                }[kind]
            )
            return path

        return make

    @pytest.mark.parametrize("command", ["inspect", "convert"])
    @pytest.mark.parametrize(
        "kind, why",
        [
            ("missing", "no such regular file"),
            ("folder", "dcp_to_torch FOLDER FILE"),
            ("pipe", "no such regular file"),
            ("bomb", "would unpack"),
            ("empty", "EOFError"),
            ("text", "UnpicklingError"),
            ("cut", "BadZipFile"),
            ("flipped", "checksum"),
            ("module", "holds more than weights, torch.nn.modules.linear.Linear"),
            ("hostile", "holds more than weights, getattr"),
        ],
    )
    def test_of_input(self, command, kind, why, bad, tmp_path):
        """The file is refused and unchanged, and a hostile one runs no code."""
        path = bad(kind)
        before = path.read_bytes() if path.is_file() else None
        out = [tmp_path / "out.pt"] if command == "convert" else []
        assert why in refusal(command, path, *out).removeprefix(f"{path}: ")
        assert (path.read_bytes() if path.is_file() else None) == before
        assert os.listdir(tmp_path) == (["in.pt"] if path.exists() else [])

    def test_are_for_reasons(self, bad, tmp_path):
        """torch.load accepts the flipped bit, and code runs without weights_only."""
        assert not torch.load(bad("flipped"))["w"].equal(torch.ones(99))
        torch.load(bad("hostile"), weights_only=False)
        assert (tmp_path / "ran").exists()

    def test_of_a_folder_does_not_open_it(self, bad, tmp_path):
        """The folder is refused unopened, as DCP would run what is in .metadata."""
        folder = bad("folder")
        refusal("inspect", folder)
        assert not (tmp_path / "ran").exists()
        with contextlib.suppress(AttributeError):  # what was unpickled is no metadata
            FileSystemReader(folder).read_metadata()
        assert (tmp_path / "ran").exists()

    def test_of_a_pickle_that_asks_for_memory(self, saved):
        """bytearray is refused, as the pickle decides how large it gets."""
        path = saved({"w": WEIGHT, "x": bytearray(9)})
        assert torch.load(path)["x"] == bytearray(9)
        assert "bytearray" in refusal("inspect", path)

    @pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cu128"])
    def test_of_a_torch_whose_weights_only_is_unsafe(self, version, saved, monkeypatch):
        """Old versions are refused, as a file could run code or corrupt memory."""
        path = saved({"w": WEIGHT})
        version = torch.torch_version.TorchVersion(version)
        monkeypatch.setattr(torch, "__version__", version)
        assert f"torch {version} is not safe" in refusal("inspect", path)

    def test_a_file_without_checksums_is_read(self, saved):
        """torch can be told to write no checksums, and such a file is read."""
        torch.serialization.set_crc32_options(False)
        try:
            path = saved({"w": WEIGHT})
        finally:
            torch.serialization.set_crc32_options(True)
        main(["inspect", str(path)])


class Config:
    """A class of the reader's own, as training scripts save in checkpoints."""


class System:
    """An object whose unpickling starts a program."""

    def __reduce__(self):
        return os.system, ("true",)


class TestMoreThanWeights:
    """A file that weights_only refuses is not called damaged."""

    @pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
    @pytest.mark.parametrize(
        "more, name",
        [
            (argparse.Namespace(lr=0.1), "argparse.Namespace"),
            (np.float64(0.9), "numpy._core.multiarray.scalar"),
            (np.ones(3), "numpy._core.multiarray._reconstruct"),
            (nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
            (Config(), f"{__name__}.Config"),
            (Path("x"), "pathlib.PosixPath"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_is_named_with_the_way_out(self, more, name, old, saved):
        """The sentence names the class, and says that the file must be trusted."""
        state = {"model": {"w": WEIGHT}, "more": more}
        path = saved(state, _use_new_zipfile_serialization=not old)
        said = refusal("inspect", path)
        assert f"holds more than weights, {name}" in said and "damaged" not in said
        for way in "only if you trust it", "weights_only=False", "add_safe_globals":
            assert way in said
        assert "state_dict()" in said

    def test_the_ways_out_are_ways_out(self, saved):
        """The file loads unchecked or with its class allowed, and can be saved."""
        path = saved({"model": {"w": WEIGHT}, "args": argparse.Namespace(lr=0.1)})
        for context in (
            contextlib.nullcontext(),
            torch.serialization.safe_globals([argparse.Namespace]),
        ):
            with context:
                unchecked = isinstance(context, contextlib.nullcontext)
                state = torch.load(path, weights_only=not unchecked)
            assert state["args"].lr == 0.1
        main(["inspect", str(saved(state["model"], "plain.pt"))])

    def test_of_several_kinds_two_are_named(self, saved):
        """Two kinds are named and the others are counted."""
        more = argparse.Namespace(), Config(), Path("x"), np.float64(1)
        said = refusal("inspect", saved({"model": {"w": WEIGHT}, "more": more}))
        assert re.search(r"weights, argparse\.Namespace, \S+ and \d more: only", said)

    def test_a_program_is_no_matter_of_trust(self, saved):
        """os.system in a pickle is an attack, so no way to load it is offered."""
        said = refusal("inspect", saved({"w": WEIGHT, "x": System()}))
        assert "system" in said and "do not load it" in said
        assert "weights_only=False" not in said

    def test_torchscript_has_a_reader_of_its_own(self, tmp_path):
        """It contains code as well as weights, so torch.jit.load is recommended."""
        with warnings.catch_warnings(action="ignore"):
            torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "in.pt")
        assert "torch.jit.load" in refusal("inspect", tmp_path / "in.pt")


def test_a_thousand_damaged_files(tmp_path, capsys, recwarn):
    """Each is read, or refused in one sentence without output; it never changes."""
    dice, source, out = random.Random(0), tmp_path / "in.pt", tmp_path / "out.pt"
    state = nn.DataParallel(make_net()).state_dict()
    objects = state, {"model": state, "epoch": 3}, {"a": WEIGHT, "b": WEIGHT[0]}
    seeds = [
        packed(thing, _use_new_zipfile_serialization=modern)
        for thing in (*objects, {"s": torch.eye(2).to_sparse(), "h": WEIGHT.half()})
        for modern in (True, False)
    ]
    count = {"read": 0, "refused": 0}
    for _ in range(1000):
        data = mutated(dice.choice(seeds), dice)
        source.write_bytes(data)
        try:
            main(["inspect", str(source)])
            main(["convert", str(source), str(out)])
            count["read"] += 1
            with warnings.catch_warnings(action="ignore"):  # of sparse ones (2.15)
                torch.load(out)
            out.unlink()
        except SystemExit as end:
            count["refused"] += 1
            words = end.code.removeprefix(f"{source}: ")
            assert 10 < len(words) < 400 and words.isascii() and words.isprintable()
        assert source.read_bytes() == data
        assert os.listdir(tmp_path) == ["in.pt"]
    assert min(count.values()) > 20, f"a hollow test: {count}"
    assert capsys.readouterr().err == ""
    assert [str(warning.message) for warning in recwarn] == []
