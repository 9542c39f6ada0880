"""Chapter 3's tool: a file is read or refused in one sentence; nothing is lost."""

import argparse
import contextlib
import io
import os
import pickle
import random
import re
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from scripts import ch3_save_load as tool

WEIGHT = torch.ones(2, 3)


class Owner(nn.Module):
    """A model that owns a submodule called module, beside another."""

    def __init__(self):
        super().__init__()
        self.module, self.head = nn.Linear(2, 2), nn.Linear(2, 1)


def make_net():
    """Layers with parameters and buffers, whose versions are in the metadata."""
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def refusal(*argv) -> str:
    """The one sentence with which the tool refuses; exit code 1."""
    with pytest.raises(SystemExit) as end:
        tool.main([str(word) for word in argv])
    assert isinstance(end.value.code, str)  # Python prints it and exits with 1
    assert len(end.value.code.splitlines()) == 1 and end.value.code.isascii()
    return end.value.code


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves an object in a file of this test."""

    def save(state, name="in.pt", **options):
        torch.save(state, tmp_path / name, **options)
        return tmp_path / name

    return save


class TestPlainKeys:
    """What wrappers added goes, and nothing else."""

    names = st.lists(
        st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1),
        min_size=1,
        max_size=3,
    ).map(".".join)

    @given(
        st.lists(names, min_size=1, max_size=5, unique=True),
        st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=4),
    )
    def test_any_nesting_of_wrappers_comes_off(self, names, wrappers):
        """Whatever the names (unless a name is a wrapper's) and the order."""
        names = [n for n in names if "_orig_mod" not in n.split(".")] or ["w"]
        if all(n.startswith("module.") for n in names):
            names.append("w")
        wrapped = {"".join(wrappers) + name: i for i, name in enumerate(names)}
        before = list(wrapped)
        assert dict(tool.plain(wrapped)) == {n: i for i, n in enumerate(names)}
        assert list(wrapped) == before, "the input was changed"

    @pytest.mark.parametrize("make", [make_net, Owner])
    @pytest.mark.parametrize(
        "wrap",
        [
            nn.DataParallel,
            torch.compile,
            lambda net: torch.compile(nn.DataParallel(net)),
            lambda net: nn.DataParallel(torch.compile(net)),
            lambda net: nn.DataParallel(nn.DataParallel(net)),
        ],
    )
    def test_of_real_wrappers(self, make, wrap):
        """Keys, values and layers' versions are those of the model inside."""
        net = make()
        state = tool.plain(wrap(net).state_dict())
        assert state._metadata == net.state_dict()._metadata
        assert list(state) == list(net.state_dict())
        make().load_state_dict(state)

    def test_of_a_compiled_part(self):
        """torch.compile inside of the model leaves its name in the middle."""
        net = make_net()
        names = list(net.state_dict())
        net[0] = torch.compile(net[0])
        assert "0._orig_mod.weight" in net.state_dict()
        assert list(tool.plain(net.state_dict())) == names

    def test_a_prefix_of_some_keys_stays(self):
        """As in an averaged model, which counts beside its module."""
        state = torch.optim.swa_utils.AveragedModel(make_net()).state_dict()
        assert list(tool.plain(state)) == list(state)

    @pytest.mark.parametrize("most, left", [(0, 2), (1, 1), (9, 0)])
    def test_the_reader_may_know_better(self, most, left):
        """A model whose only child is called module cannot be told from DDP."""
        state = {"module.module.weight": 0}
        assert list(tool.plain(state, most)) == ["module." * left + "weight"]

    def test_a_tensor_called_module_stays(self):
        """A wrapper's name has something after it."""
        assert list(tool.plain({"module": 0})) == ["module"]

    def test_names_that_would_collide_are_refused(self):
        """Rather than one of two tensors lost."""
        with pytest.raises(tool.Refusal, match="_orig_mod"):
            tool.plain({"a.weight": 0, "a._orig_mod.weight": 1})


class TestConvert:
    """The output is what the plain model would have saved."""

    def test_loads_into_the_plain_model(self, saved, tmp_path, capsys):
        """From beside an optimizer; outputs are equal."""
        net = make_net()
        wrapped = torch.compile(nn.DataParallel(net)).state_dict()
        optim = torch.optim.Adam(net.parameters()).state_dict()
        path = saved({"optim": optim, "model": wrapped, "rng": torch.get_rng_state()})
        tool.main(["convert", str(path), str(tmp_path / "out.pt")])
        assert "left out: optim, rng" in capsys.readouterr().out
        fresh = make_net()
        fresh.load_state_dict(torch.load(tmp_path / "out.pt"))
        x = torch.rand(4, 2)
        assert torch.equal(fresh.eval()(x), net.eval()(x))

    def test_keeps_every_kind_of_entry(self, saved, tmp_path):
        """Tied, zero-dim, sparse, views, other types, and what is no tensor."""
        state = {
            "module.a": WEIGHT,
            "module.tied": WEIGHT,
            "module.view": WEIGHT[1],
            "module.scalar": torch.tensor(2.5),
            "module.empty": torch.empty(0, dtype=torch.bfloat16),
            "module.sparse": torch.eye(2).to_sparse(),
            "module._extra_state": {"scale": 3},
        }
        tool.main(["inspect", str(saved(state))])
        tool.main(["convert", str(saved(state)), str(tmp_path / "out.pt")])
        out = torch.load(tmp_path / "out.pt")
        assert out.pop("_extra_state") == {"scale": 3}
        out["a"][1, 0] = 7
        assert out["tied"][1, 0] == 7, "one memory no more"
        out["a"][1, 0] = 1
        for key, value in out.items():
            old = state[f"module.{key}"]
            assert value.dtype == old.dtype and value.layout == old.layout
            assert torch.equal(value.to_dense(), old.to_dense())

    def test_takes_only_the_memory_of_the_model(self, saved, tmp_path):
        """A part of a larger memory is copied, once: what was tied stays tied."""
        flat = torch.rand(10**5)
        model = {"a": flat[:5], "tied": flat[:5], "b": flat[5:7], "c": flat[:0]}
        path = saved({"model": model, "optim": {"state": {0: flat}}})
        tool.main(["convert", str(path), str(tmp_path / "out.pt")])
        assert (tmp_path / "out.pt").stat().st_size < 5000 < path.stat().st_size
        out = torch.load(tmp_path / "out.pt")
        assert all(out[key].equal(model[key]) for key in model)
        out["a"][0] = 7
        assert out["tied"][0] == 7

    def test_counts_numbers_that_are_there(self):
        """Views of one buffer are not tied; an expanded tensor holds one number."""
        flat = torch.ones(160)
        parts = {str(i): flat[i * 40 : i * 40 + 40] for i in range(4)}
        lines = tool.table(parts | {"tied": parts["0"]})
        assert lines[0].startswith("160 numbers")
        assert [line.split("memory of ")[1:] for line in lines[1:]] == [[]] * 4 + [
            ["0"]
        ]
        assert tool.table({"x": torch.zeros(1).expand(10**12)})[0].startswith("1 num")

    @pytest.mark.parametrize(
        "state, flags, found",
        [
            ({"w": WEIGHT}, "", ["w"]),
            ({"model": {"w": WEIGHT}, "rng": WEIGHT}, "", ["w"]),
            ({"state_dict": {"w": WEIGHT}, "ema": {"e": WEIGHT}}, "", ["w"]),
            ({"net": {"w": WEIGHT}, "optim": {"state": {0: WEIGHT}}}, "", ["w"]),
            ({"a": {"w": WEIGHT}, "b": {"v": WEIGHT}}, "--entry b", ["v"]),
            ({"module.module.w": WEIGHT}, "--most 1", ["module.w"]),
            ({"a": {"w": WEIGHT}, "b": {"v": WEIGHT}}, "", "found a, b"),
            ({"a": {"w": WEIGHT}}, "--entry c", "found a"),
            ({"epoch": 3}, "", "found none"),
            ({0: WEIGHT}, "", "found none"),
            ([WEIGHT], "", "found none"),
            (WEIGHT, "", "found none"),
        ],
    )
    def test_finds_the_state_dict(self, state, flags, found, saved, tmp_path):
        """By the usual names, else the only one, else it asks."""
        argv = ["convert", saved(state), tmp_path / "out.pt", *flags.split()]
        if isinstance(found, str):
            assert found in refusal(*argv)
            assert os.listdir(tmp_path) == ["in.pt"]
        else:
            tool.main([str(word) for word in argv])
            assert list(torch.load(tmp_path / "out.pt")) == found

    def test_maps_another_machines_gpu_to_the_cpu(self, tmp_path):
        """A file from a CUDA machine: torch's sentence without map_location."""
        path = tmp_path / "gpu.pt"
        cpu, gpu = b"\x03\0\0\0cpu", b"\x07\0\0\0cuda:99"
        path.write_bytes(
            rewritten(packed({"w": WEIGHT}), lambda d: d.replace(cpu, gpu))
        )
        with pytest.raises(RuntimeError, match=r"deserialize object on .*CUDA device"):
            torch.load(path)
        tool.main(["convert", str(path), str(tmp_path / "out.pt")])
        assert torch.load(tmp_path / "out.pt")["w"].device.type == "cpu"


def packed(state, **options) -> bytes:
    """What torch.save would write."""
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


def rewritten(data: bytes, change) -> bytes:
    """A zip archive of torch.save with another pickle, under right checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            part = old.read(name)
            new.writestr(name, change(part) if name.endswith("data.pkl") else part)
    return file.getvalue()


class Hostile:
    """An object whose pickle creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class TestRefusals:
    """One sentence that says what is wrong; the file stays; no output."""

    @pytest.fixture
    def bad(self, tmp_path):
        """Return a function that makes a bad file of some kind."""

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
            if kind == "safetensors":
                save_file({"w": WEIGHT}, path)
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
            ("folder", "dcp_to_torch_save"),
            ("pipe", "no such regular file"),
            ("safetensors", "a safetensors file"),
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
        """The code that a hostile file holds does not run."""
        path = bad(kind)
        before = path.read_bytes() if path.is_file() else None
        argv = [command, path, *[tmp_path / "out.pt"] * (command == "convert")]
        assert why in refusal(*argv).removeprefix(f"{path}: ")
        assert (path.read_bytes() if path.is_file() else None) == before
        assert os.listdir(tmp_path) == ["in.pt"] * path.exists()

    def test_are_for_reasons(self, bad, tmp_path):
        """torch.load takes the flipped file; without weights_only, code runs."""
        assert not torch.load(bad("flipped"))["w"].equal(torch.ones(99))
        torch.load(bad("hostile"), weights_only=False)
        assert (tmp_path / "ran").exists()

    def test_of_a_folder_does_not_open_it(self, bad, tmp_path):
        """DCP itself would run what is in .metadata."""
        folder = bad("folder")
        refusal("inspect", folder)
        assert not (tmp_path / "ran").exists()
        with contextlib.suppress(AttributeError):  # what came out is no metadata
            FileSystemReader(folder).read_metadata()
        assert (tmp_path / "ran").exists()

    def test_of_a_pickle_that_asks_for_memory(self, saved):
        """weights_only makes a bytearray as large as the pickle says."""
        path = saved({"w": WEIGHT, "x": bytearray(9)})
        assert torch.load(path)["x"] == bytearray(9)
        assert "bytearray" in refusal("inspect", path)

    @pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cu128"])
    def test_of_a_torch_whose_weights_only_is_unsafe(self, version, saved, monkeypatch):
        """It was possible to run code, or to corrupt memory."""
        path = saved({"w": WEIGHT})
        version = torch.torch_version.TorchVersion(version)
        monkeypatch.setattr(torch, "__version__", version)
        assert f"torch {version} is not safe" in refusal("inspect", path)

    def test_a_file_without_checksums_is_read(self, saved):
        """torch can be told to write none."""
        torch.serialization.set_crc32_options(False)
        try:
            path = saved({"w": WEIGHT})
        finally:
            torch.serialization.set_crc32_options(True)
        tool.main(["inspect", str(path)])

    def test_names_cannot_play_tricks_on_the_terminal(self, saved, capsys):
        """No control character, no line break, no half of a character."""
        wild = {"\x1b[2Jw\n\ud800": WEIGHT, "n": "x" * 9999}
        tool.main(["inspect", str(saved({"model": wild, "\r": "\x1b"}))])
        shown = capsys.readouterr().out
        assert shown.isascii() and shown.replace("\n", "").isprintable()
        assert r"\x1b[2Jw\n\ud800" in shown and max(map(len, shown.splitlines())) < 300

    @pytest.mark.parametrize(
        "argv",
        ["", "inspect", "convert a", "demo", "convert a b c", "inspect a --most -1"],
    )
    def test_of_usage(self, argv):
        """argparse's own sentence, and exit code 2."""
        with pytest.raises(SystemExit) as end:
            tool.main(argv.split())
        assert end.value.code == 2


class Config:
    """A class of the reader's own, as training scripts put into checkpoints."""


class System:
    """An object whose pickle starts a program."""

    def __reduce__(self):
        return os.system, ("true",)


class TestMoreThanWeights:
    """A whole file that weights_only refuses is not called damaged."""

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
        """The sentence says what it is, and that trust comes first."""
        state = {"model": {"w": WEIGHT}, "more": more}
        path = saved(state, _use_new_zipfile_serialization=not old)
        said = refusal("inspect", path)
        assert f"holds more than weights, {name}" in said and "damaged" not in said
        for way in "only if you trust it", "weights_only=False", "add_safe_globals":
            assert way in said
        assert "state_dict()" in said

    def test_the_ways_out_are_ways_out(self, saved):
        """Loading it unchecked, or with its class allowed, and saving it anew."""
        path = saved({"model": {"w": WEIGHT}, "args": argparse.Namespace(lr=0.1)})
        for context in (
            contextlib.nullcontext(),
            torch.serialization.safe_globals([argparse.Namespace]),
        ):
            with context:
                unchecked = isinstance(context, contextlib.nullcontext)
                state = torch.load(path, weights_only=not unchecked)
            assert state["args"].lr == 0.1
        tool.main(["inspect", str(saved(state["model"], "plain.pt"))])

    def test_of_several_kinds_two_are_named(self, saved):
        """And the others are counted."""
        more = argparse.Namespace(), Config(), Path("x"), np.float64(1)
        said = refusal("inspect", saved({"model": {"w": WEIGHT}, "more": more}))
        assert re.search(r"weights, argparse\.Namespace, \S+ and \d more: only", said)

    def test_a_program_is_no_matter_of_trust(self, saved):
        """os.system in a pickle is an attack; no way to load it is offered."""
        said = refusal("inspect", saved({"w": WEIGHT, "x": System()}))
        assert "system" in said and "do not load it" in said
        assert "weights_only=False" not in said

    def test_torchscript_has_a_reader_of_its_own(self, tmp_path):
        """It is code and weights in one."""
        with warnings.catch_warnings(action="ignore"):
            torch.jit.script(nn.Linear(1, 1)).save(tmp_path / "in.pt")
        assert "torch.jit.load" in refusal("inspect", tmp_path / "in.pt")


@pytest.mark.parametrize(
    "where, code, said",
    [
        (">/dev/full", 1, "cannot print: [Errno 28] No space left on device"),
        ("| true", 141, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(where, code, said, saved):
    """A full disk is told, a reader who has left is not; neither ends with 0."""
    command = f"{sys.executable} {tool.__file__} inspect {saved({'w': WEIGHT})} {where}"
    command += "; exit ${PIPESTATUS[0]}"
    end = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert (end.returncode, end.stderr.decode().strip()) == (code, said)


def test_ctrl_c_while_torch_is_imported_is_no_traceback(tmp_path):
    """The import takes longer than the work."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, tool.__file__, "inspect", "x"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    end = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (end.returncode, end.stdout, end.stderr) == (130, b"", b"")


@pytest.mark.parametrize(
    "argv, said",
    [
        ("inspect in.pt --entry nope", "found all for a state dict, not 'nope'"),
        ("inspect in.pt --entry=", "not ''"),
        ("convert in.pt folder", "folder exists: name another"),
        ("convert in.pt folder --force", "folder exists: name another"),
        ("convert in.pt in.pt2", "in.pt2 exists: --force replaces it"),
        ("convert in.pt /dev/null --force", "/dev/null exists: name another"),
        ("convert in.pt no/out.pt", "cannot write no/out.pt"),
        (f"convert in.pt {'x' * 300}", "File name too long"),
        ("demo in.pt", "in.pt exists: --force replaces it"),
        ("demo no/demo.pt", "cannot write no/demo.pt"),
        ("inspect a\\nb", "a\\nb: no such regular file"),
    ],
    ids=range(11),
)
def test_a_refusal_names_the_value_and_the_way_out(argv, said, saved, monkeypatch):
    """What is asked for in vain, and what may be done instead; nothing is damaged."""
    path = saved({"all": {"w": WEIGHT}})
    saved({"w": WEIGHT}, "in.pt2")
    monkeypatch.chdir(path.parent)
    (path.parent / "folder").mkdir()
    before = sorted(os.listdir())
    words = [word.replace("\\n", "\n") for word in argv.split()]
    answer = refusal(*words)
    assert said in answer and "damaged" not in answer and len(answer) < 400
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("argv", [["inspect", ""], ["convert", "in.pt", ""]], ids=str)
def test_an_empty_name_is_a_variable_that_nobody_set(argv, capsys):
    """It is not the folder that one stands in."""
    with pytest.raises(SystemExit) as end:
        tool.main(argv)
    assert end.value.code == 2 and "'' is no file" in capsys.readouterr().err


class TestWrite:
    """All of the output or none, and nothing is overwritten unasked."""

    @pytest.fixture
    def source(self, saved):
        return saved({"module.w": WEIGHT})

    @pytest.mark.parametrize("old", ["file", "link", "dangling", "folder", "device"])
    def test_what_is_there_stays(self, old, source, tmp_path):
        """Files, links, folders and devices; the last two even with --force."""
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
        if old == "dangling":  # nor is there a file to replace
            assert "exists" in refusal("convert", source, out, "--force")
            return
        tool.main(["convert", str(source), str(out), "--force"])
        assert list(torch.load(out)) == ["w"]
        assert out.is_symlink() == (old == "link")

    @pytest.mark.parametrize("kind", ["itself", "symlink", "hard link"])
    def test_never_onto_the_input(self, kind, source, tmp_path):
        """Not even with --force: what is left out would be lost."""
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
        """Half of it is written when no space is left; the sentence says so."""
        if not unnamed:
            monkeypatch.delattr(os, "O_TMPFILE", raising=False)  # as on a Mac
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
        argv = ["convert", source, tmp_path / "out.pt", *["--force"] * force]
        assert "No space left" in refusal(*argv)
        assert sorted(os.listdir(tmp_path)) == before
        assert not force or (tmp_path / "out.pt").read_text() == "old"

    @pytest.mark.parametrize("unnamed", [False, True])
    def test_a_file_that_comes_meanwhile_stays(
        self, unnamed, source, tmp_path, monkeypatch
    ):
        """Another writer takes the name between the first look and the end."""
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
        """Not those of a temporary file, which nobody else may read."""
        tool.main(["convert", str(source), str(tmp_path / "out.pt")])
        (tmp_path / "new").touch()
        modes = [(tmp_path / name).stat().st_mode for name in ("out.pt", "new")]
        assert modes[0] == modes[1]

    @pytest.mark.parametrize("place", ["missing/out.pt", "/proc/out.pt"])
    def test_an_impossible_place(self, place, source, tmp_path):
        """A folder that is not there, or takes no files."""
        assert f"cannot write {tmp_path / place}" in refusal(
            "convert", source, tmp_path / place
        )


KILLED = """
import os, signal, sys
import torch
from scripts import ch3_save_load as tool

def half(state, file):
    file.write(bytes(10**6))
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)

torch.save = half
for out in sys.argv[2:]:
    if os.fork():
        assert os.wait()[1] == signal.SIGKILL
    else:
        tool.main(["convert", sys.argv[1], out, "--force"])
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name: Linux")
def test_killed_in_the_middle_of_writing(saved, tmp_path):
    """The old output stays, no new one begins to be, nothing is left over."""
    path = saved({"w": WEIGHT})
    (tmp_path / "old.pt").write_text("old")
    names = [path, tmp_path / "old.pt", tmp_path / "new.pt"]
    command = [sys.executable, "-c", KILLED, *map(str, names)]
    subprocess.run(command, check=True, timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["in.pt", "old.pt"]
    assert (tmp_path / "old.pt").read_text() == "old"


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Damage of some kind: cut, flipped, spliced, or in the pickle itself."""
    kind = dice.choice(["cut", "flip", "splice", "insert", "tail", "pickle", "pickle"])
    if kind == "pickle" and data.startswith(b"PK"):
        return rewritten(data, lambda part: mutated(part, dice))
    i, j = sorted(dice.choices(range(len(data)), k=2))
    if kind == "cut":
        return data[:i]
    if kind == "splice":
        return data[:i] + data[j:]
    if kind == "insert":
        return data[:i] + dice.randbytes(dice.randrange(1, 40)) + data[i:]
    data = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 20])):
        spot = (
            len(data) - dice.randrange(1, min(900, len(data))) if kind == "tail" else i
        )
        data[spot] = dice.choice([0, 127, 255, dice.randrange(256)])
        i = dice.randrange(len(data))
    return bytes(data)


def test_a_thousand_damaged_files(tmp_path, capsys, recwarn):
    """Read or refused in one sentence; unchanged; output if and only if read."""
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
            tool.main(["inspect", str(source)])
            tool.main(["convert", str(source), str(out)])
            count["read"] += 1
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


def test_saving_in_the_background_needs_a_group_of_the_cpu(tmp_path):
    """As on GPUs with nccl alone: it is refused, and says what to join with."""
    dist.init_process_group("cuda:gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(AssertionError, match="'cpu:gloo,cuda:nccl'"):
            dcp.async_save({"x": torch.ones(2)}, checkpoint_id=tmp_path)
    finally:
        dist.destroy_process_group()
