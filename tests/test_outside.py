"""``make outside`` gives strangers' tests our classes, and its record says which."""

import json
import re
import subprocess
from datetime import date
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from allranks import Ranks
from allranks.base.paths import ROOT
from book._ext.runs import outside

RECORD = json.loads((ROOT / outside.DATA).read_text("utf8"))
START = """
import os
import sys
from types import ModuleType

import scripts

sys.modules["cs336_basics"] = ModuleType("cs336_basics")
layers = sys.modules["cs336_basics.model"] = ModuleType("cs336_basics.model")
layers.Linear, layers.Embedding = torch.nn.Linear, torch.nn.Embedding
from tests.outside import cs336

def ddp():
    net = cs336.get_ddp(torch.nn.Linear(3, 2))
    net(torch.arange(12.0).view(4, 3) * (1 + rank)).square().mean().backward()
    cs336.ddp_on_after_backward(net, None)
    params = [*net.module.parameters()]
    return torch.cat([t.flatten() for p in params for t in (p, p.grad)])

def optimizer():
    how = {"lr": 0.1, "weight_decay": 0.1}
    frozen = torch.nn.Parameter(torch.ones(2) + rank, requires_grad=False)
    params = [*torch.nn.Linear(3, 2).parameters(), frozen]
    part = cs336.get_sharded_optimizer(iter(params), torch.optim.AdamW, **how)
    for p in params[:2]:
        torch.distributed.broadcast(p.detach(), 0)
    if hasattr(part, "way"):  # its weights are rank 0's already
        assert params[2].eq(1).all()
    for step in range(3):
        part.zero_grad()
        sum((p * (1 + step)).sum() for p in params[:2]).backward()
        part.step()
    return torch.cat([p.detach().flatten() for p in params[:2]])

def fsdp():
    table, norm = torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4)
    net = torch.nn.Sequential(table, norm, torch.nn.Linear(4, 5))
    for p in net.parameters():  # fully_shard does not
        torch.distributed.broadcast(p.detach(), 0)
    net = cs336.get_fsdp(net)
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.arange(3) + rank).square().mean().backward()
        cs336.fsdp_on_after_backward(net, optimizer)
        for name, p in net.module.named_parameters():
            assert p.grad.shape == p.shape, name
        optimizer.step()
    whole = cs336.fsdp_gather_full_params(net)
    return torch.cat([whole[name].flatten() for name in sorted(whole)])

def found(way, subject):
    os.environ["SUBJECT"] = subject
    torch.manual_seed(rank)
    return way()
"""


@pytest.fixture(scope="module")
def main():
    """Return the module that runs the tests."""
    return import_module("tests.outside.__main__")


@pytest.fixture(scope="module")
def ranks():
    """Yield two live ranks with the adapters of CS336's tests."""
    with Ranks(2) as ranks:
        ranks.run(START, quiet=True)
        yield ranks


@pytest.mark.parametrize("way, file", [("ddp", "ddp"), ("fsdp", "fsdp")])
def test_adapters_train_our_classes_as_they_do_pytorchs(ranks, main, way, file):
    """On both ranks the same, and what PyTorch's class gives."""
    runs = [r for r in main.RUNS if r.file == f"tests/test_{file}.py"]
    *subjects, torchs = runs[0].subjects
    assert subjects and torchs.startswith("torch.")
    wanted = ranks.run(f"found({way}, {torchs!r})", quiet=True)
    for subject in subjects:
        for one in ranks.run(f"found({way}, {subject!r})", quiet=True):
            torch.testing.assert_close(one, wanted[0])


def test_adapters_share_out_an_optimizer(ranks, main):
    """Each of them ends where AdamW does in one process, and keeps what is frozen."""
    torch.manual_seed(0)
    params = [*nn.Linear(3, 2).parameters()]
    alone = torch.optim.AdamW(params, lr=0.1, weight_decay=0.1)
    for step in range(3):
        alone.zero_grad()
        sum((p * (1 + step)).sum() for p in params).backward()
        alone.step()
    wanted = torch.cat([p.detach().flatten() for p in params])
    for subject in main.ZERO:
        for one in ranks.run(f"found(optimizer, {subject!r})", quiet=True):
            torch.testing.assert_close(one, wanted)


def test_another_dtype_is_not_offered_by_ours():
    """And that is what the record says, not that ours has failed."""
    adapters = import_module("tests.outside.cs336")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBJECT", "ch12_zero.Zero3")
        with pytest.raises(NotImplementedError, match="in the dtype of its weights"):
            adapters.get_fsdp(nn.Linear(2, 2), torch.float16)


@pytest.mark.parametrize("subject", ["ch12_muon.Muon", "torch.optim.Muon"])
def test_adapters_update_matrices_as_nanochat_calls_it(subject, monkeypatch):
    """A first step of length lr along the gradient's directions, and AdamW's beside."""
    monkeypatch.setenv("SUBJECT", subject)
    adapter = import_module("tests.outside.nanochat").MuonAdamW
    matrix, row = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))
    muon = {"momentum": 0.0, "ns_steps": 5, "beta2": 1.0, "weight_decay": 0.0}
    adamw = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
    groups = [
        {"kind": "muon", "params": [matrix], "lr": 1.0, **muon},
        {"kind": "adamw", "params": [row], "lr": 0.1, **adamw},
    ]
    matrix.grad, row.grad = torch.tensor([[3.0, 0.0], [0.0, -2.0]]), torch.ones(3)
    adapter(groups).step()
    assert (matrix.diagonal() * torch.tensor([-1, 1]) - 1).abs().max() < 0.4
    torch.testing.assert_close(row.detach(), torch.full((3,), -0.1))


def test_the_newest_rule_takes_the_place_of_ours(monkeypatch):
    """steps.py overrides Dealt.update: by this name, with these arguments."""
    import inspect

    monkeypatch.setenv("SUBJECT", "ch12_muon.Dealt")
    steps = import_module("tests.outside.steps")
    update = inspect.signature(steps.subject().update)
    assert [*update.parameters] == ["self", "key", "weights", "grads"]


def test_the_record_names_commits_tests_and_classes(main):
    """Each class exists, each test is one that make outside runs, each end is known."""
    assert RECORD.keys() == {"day", "torch", "clones", "installed", "rows"}
    assert RECORD["installed"].keys() == {*main.INSTALLED}
    for about in RECORD["installed"].values():
        assert re.match(r"\d+\.\d+", about["version"])
        assert re.match(r"\d+\.\d+\.\d+", about["torch"])
        date.fromisoformat(about["day"])
    assert RECORD["clones"].keys() == main.CLONES.keys()
    for name, about in RECORD["clones"].items():
        assert about["repository"] == main.CLONES[name]
        assert re.fullmatch(r"[0-9a-f]{40}", about["commit"])
        assert date(2025, 1, 1) <= date.fromisoformat(about["day"])
        assert about["day"] <= RECORD["day"]
    date.fromisoformat(RECORD["day"])
    assert re.match(r"\d+\.\d+\.\d+", RECORD["torch"])
    runs = {(r.clone, r.file, r.edited): r.subjects for r in main.RUNS}
    assert {(r["clone"], r["file"], r["edited"]) for r in RECORD["rows"]} == {*runs}
    for row in RECORD["rows"]:
        assert re.fullmatch(r"test_\w+(\[[\w.-]+\])?", row["test"])
        assert row["ends"]
        for subject, end in row["ends"].items():
            module, _, name = subject.rpartition(".")
            assert callable(getattr(import_module(module), name))
            end = end.partition(":")[0]
            assert outside.SAID.get(end, end) in outside.ENDS


def test_the_record_has_what_the_page_explains():
    """All pass, but for equal bits, another dtype, rank 1, and what nanochat added."""
    odd = {}
    for row in RECORD["rows"]:
        for subject, end in row["ends"].items():
            end = end.partition(":")[0]
            if end != "passed":
                odd.setdefault((row["test"], row["edited"]), {})[subject] = end
    fsdp, dtype = "test_fsdp_{}[{}]", {"ch12_zero.Zero3": "not offered"}
    both = "ch12_zero.Zero3", "torch.distributed.fsdp.fully_shard"
    rule = dict.fromkeys(["ch12_muon.Dealt", "torch.optim.Muon"], "failed")
    alone = dict.fromkeys(["ch12_muon.Muon", "torch.optim.Muon"], "failed")
    assert odd == {
        (fsdp.format("correctness", "fp32"), ""): dict.fromkeys(both, "failed"),
        (fsdp.format("correctness", "fp16"), ""): dtype,
        (fsdp.format("gradient_sync", "fp16"), ""): dtype,
        ("test_convergence", "on the CPU"): alone,
        ("test_steps[newest_rule-2]", ""): rule,
        ("test_steps[newest_rule-4]", ""): rule,
    }


@pytest.mark.parametrize(
    "package, title", [("deepspeed", "DeepSpeed"), ("accelerate", "Accelerate")]
)
def test_each_row_of_the_tables_to_move_has_been_tried(package, title):
    """By the names of its options; and its default is the package's."""
    page = (ROOT / "book/ch12_2_moving.md").read_text("utf8")
    section = page.partition(f"## And from {title}?")[2].partition("\n## ")[0]
    _, _, *table = (line for line in section.splitlines() if line.startswith("|"))
    tried = {}
    for row in (row for row in RECORD["rows"] if row["clone"] == package):
        (tried[row["test"]],) = row["ends"].values()
    assert len(table) > 6
    for line in table:
        option, default, *_ = line.replace("`<wbr>`", "").strip("|").split("|")
        names = ("_".join(re.findall(r"\w+", o)) for o in re.findall("`(.+?)`", option))
        default = default.strip().replace("`", "")
        said = tried.pop("test_" + "__".join(names))
        assert said.startswith(
            f"passed: default {default};" if default else "passed: ran"
        )
    assert len(tried) < 4  # what the page says below its tables


@pytest.mark.parametrize("folder", [None, "", "/nowhere"])
def test_without_clones_one_sentence_says_what_to_clone(main, folder):
    """And where, and how to go on."""
    with pytest.raises(SystemExit) as caught:
        main.find(folder)
    (said,) = str(caught.value).splitlines()
    for repository in main.CLONES.values():
        assert f"git clone https://github.com/{repository}" in said
    assert said.endswith("make outside CLONES=DIR")


@pytest.fixture
def kept(main, monkeypatch, tmp_path):
    """Let the record be a copy, and return it."""
    data = tmp_path / "outside.json"
    data.write_text(json.dumps(RECORD))
    monkeypatch.setattr(main, "DATA", data)
    for name, value in main.ENV.items():  # which it sets for all that follows
        monkeypatch.setenv(name, value)
    return data


def test_what_is_not_installed_is_named_in_one_sentence(
    main, kept, monkeypatch, capsys
):
    """And how to install it; the record stays as it is."""

    def missing(name):
        raise main.PackageNotFoundError(name)

    monkeypatch.setattr(main, "version", missing)
    monkeypatch.setattr(main, "play", None)
    main.main(["--installed"])
    said = capsys.readouterr().out.splitlines()
    for name, sentence in zip(main.INSTALLED, said, strict=True):
        assert sentence.startswith(f"make outside: {name} is not installed, so ")
        assert f"pip install --target DIR {name}" in sentence
    assert json.loads(kept.read_text()) == RECORD


def test_what_needs_no_clone_leaves_the_other_rows(main, kept, monkeypatch):
    """The new rows take the place of the packages' alone."""
    monkeypatch.setattr(main, "version", lambda name: "9.9")
    monkeypatch.setattr(main, "play", lambda *_: {"test_it": "passed: gap 1e-09"})
    main.main(["--installed"])
    record, names = json.loads(kept.read_text()), main.INSTALLED
    for name in names:
        assert record["installed"][name]["version"] == "9.9"
        assert outside.gap(record, name) == "off by at most 1e-09"
    for key in ("day", "torch", "clones"):
        assert record[key] == RECORD[key]
    others = [
        [r for r in x["rows"] if r["clone"] not in names] for x in (record, RECORD)
    ]
    assert others[0] == others[1] and len(others[0]) == len(record["rows"]) - len(names)


def test_without_a_clone_the_copy_has_our_files_alone(main, tmp_path):
    """The test of an installed package is one of this folder's."""
    (run,) = (run for run in main.RUNS if run.clone == "transformers")
    main.unpack(tmp_path / "none", "", run, tmp_path / "copy")
    assert [f.name for f in (tmp_path / "copy").iterdir()] == [run.file]


TESTS = """
import torch.multiprocessing as mp
from .adapters import which

def rank(number, world_size):
    assert number < world_size and which() != "b.B", which()

def test_ranks():
    mp.spawn(rank, args=(2,), nprocs=2)

def test_gap(record_property):
    record_property("gap", "3e-09")

def test_not_offered():
    raise NotImplementedError("by hand")
"""


@pytest.fixture
def clone(tmp_path, monkeypatch, main):
    """Return a repository with tests, and the adapters that are to replace its own."""
    folder, ours = tmp_path / "theirs", tmp_path / "ours"
    (folder / "tests").mkdir(parents=True)
    ours.mkdir()
    (folder / "tests/__init__.py").write_text("")
    (folder / "tests/adapters.py").write_text("raise ImportError('theirs')")
    (folder / "tests/test_it.py").write_text(TESTS)
    which = "import os\ndef which():\n    return os.environ['SUBJECT']\n"
    (ours / "mine.py").write_text(which)
    monkeypatch.setattr(main, "HERE", ours)

    def git(*words):
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        command = ["git", "-C", str(folder), *who, *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return SimpleNamespace(folder=folder, git=git, commit=git("rev-parse", "HEAD"))


def test_their_tests_run_with_our_adapters_and_stay_as_they_are(main, clone):
    """Each test's end is read, with a gap or an error, and the clone is not touched."""
    run = main.Run("it", "tests/test_it.py", (), {"tests/adapters.py": "mine.py"})
    found = main.play(clone.folder, clone.commit, run, "a.A")
    assert found == {
        "test_ranks": "passed",
        "test_gap": "passed: gap 3e-09",
        "test_not_offered": "not offered: by hand",
    }
    found = main.play(clone.folder, clone.commit, run, "b.B")
    assert found["test_ranks"].startswith("failed: AssertionError: b.B")
    assert clone.git("status", "--porcelain") == ""


def test_an_edit_that_finds_nothing_is_refused(main, clone, tmp_path):
    """Else the page would say of their own test what was true of an edited one."""
    ours = {"tests/adapters.py": "mine.py"}
    run = main.Run("it", "tests/test_it.py", (), ours, edits={"torch.equal(": "x"})
    with pytest.raises(ValueError, match=r"test_it.py of it has no 'torch.equal\('"):
        main.unpack(clone.folder, clone.commit, run, tmp_path / "copy")
