"""``make gpu``, tried without a GPU, records what passes, fails or hangs."""

import json
import os
import sys
import time
from importlib import import_module
from types import SimpleNamespace

import psutil
import pytest
import torch

from allranks import Ranks, clinic
from allranks.base.paths import ROOT
from book._ext.front import fronts

SMI = ROOT / "tests/allranks/doctor/machines"
MACHINE = {"names": ["H100"], "memory_bytes": [85 * 10**9], "num_gpus": 1}
MACHINE |= {"torch": "2.13.0", "cuda": "13.0", "nccl": "2.27.5", "driver": "580.1"}
MACHINE |= {"date": "2026-11-22"}


@pytest.fixture(scope="module")
def gpu():
    """Return the modules of tests/gpu by name; ``main`` is its __main__."""
    names = "play", "hardware", "launches", "measures", "cases", "on_gpu", "__main__"
    modules = {name.strip("_"): import_module(f"tests.gpu.{name}") for name in names}
    return SimpleNamespace(**modules)


def program(gpu, code: str, name: str = "it", **options):
    """Return an item that runs some code."""
    return gpu.play.Item("scripts", name, 1, (sys.executable, "-c", code), **options)


def test_without_a_gpu_one_sentence_and_nothing_is_written(gpu, monkeypatch, capsys):
    """The real torch is asked, with its GPUs hidden in case there are some."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(gpu.main, "play", lambda *_: pytest.fail("it plays"))
    before = gpu.main.DATA.exists()
    assert gpu.main.main([]) == 1
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "sees no GPU on this machine" in out
    assert gpu.main.DATA.exists() == before


@pytest.mark.parametrize(
    "code, fault",
    [("raise SystemExit('no driver')", "no driver"), ("while True: pass", "answer")],
)
def test_a_torch_that_fails_or_hangs_is_told(gpu, monkeypatch, capsys, code, fault):
    """Both are reported in one sentence, as a broken driver can cause either."""
    monkeypatch.setattr(gpu.hardware, "ASK", code)
    real = gpu.hardware.subprocess.run
    monkeypatch.setattr(
        gpu.hardware.subprocess, "run", lambda *a, **k: real(*a, **k | {"timeout": 1.5})
    )
    assert gpu.main.main([]) == 1
    out = capsys.readouterr().out
    assert fault in out and "nothing written" in out
    assert len(out.splitlines()) == 1


def test_the_driver_is_asked_of_nvidia_smi(gpu, monkeypatch):
    """The version comes from nvidia-smi; it is None if that fails or is missing."""
    monkeypatch.setenv("PATH", f"{SMI}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SMI_MACHINE", "h100_node")
    assert gpu.hardware.driver() == "580.65.06"
    monkeypatch.setenv("SMI_MACHINE", "no_driver")
    assert gpu.hardware.driver() is None
    monkeypatch.setenv("PATH", "")
    assert gpu.hardware.driver() is None


class TestFaults:
    """Whatever an item does, it is recorded and the other items are still played."""

    def test_each_end_is_recorded(self, gpu, tmp_path, monkeypatch, capsys):
        """Right, wrong, out-of-memory, hanging and missing programs are all recorded.

        So are items that need more GPUs or machines, and no process is left behind.
        """
        oom = "raise MemoryError('CUDA out of memory. Tried 20 GiB')"
        hang = "print('step 3', flush=True); import time; time.sleep(61.7)"
        child = "import subprocess; subprocess.Popen(['sleep', '61.7'], "
        child += f"start_new_session=True); {hang}"
        listed = [
            program(gpu, "print('loss 0.1')", "right"),
            program(gpu, "print('half'); raise ValueError('rank 0 broke')", "wrong"),
            program(gpu, oom, "memory"),
            program(gpu, child, "hangs", timeout_s=1.0),
            gpu.play.Item("scripts", "missing", 1, ("/no/such/program",)),
            gpu.play.Item("scripts", "eight", 8, (sys.executable,)),
            gpu.play.Item("clinic", "elsewhere", why="it takes two machines"),
        ]
        monkeypatch.setattr(gpu.main, "items", lambda *_: listed)
        path = tmp_path / "out" / "gpu.json"
        assert gpu.main.main(["--rehearse", str(path), "--gpus", "1"]) == 1
        data = json.loads(path.read_text("utf8"))
        found = {item["name"]: item for item in data["items"]}
        assert list(found) == [item.name for item in listed]
        ends = [item["outcome"] for item in found.values()]
        assert ends == ["passed"] + ["failed"] * 4 + ["not run"] * 2
        assert found["right"]["last"] == "loss 0.1"
        assert found["wrong"]["why"] == "exit code 1: ValueError: rank 0 broke"
        assert found["memory"]["why"].endswith("out of memory. Tried 20 GiB")
        assert found["hangs"]["why"] == "stopped after 1 s; its last line: step 3"
        assert "could not be started" in found["missing"]["why"]
        assert found["eight"]["why"] == "needs 8 GPUs, and there is 1"
        assert found["elsewhere"]["why"] == "it takes two machines"
        assert data["machine"]["rehearsal"] is True
        assert "1 passed, 4 failed" in capsys.readouterr().out
        time.sleep(0.1)
        lines = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
        assert ["sleep", "61.7"] not in lines
        assert sorted(p.name for p in path.parent.iterdir()) == ["gpu.json"]

    def test_a_part_that_was_not_played_stays_on_the_same_machine(self, gpu, tmp_path):
        """Results of other parts are kept, unless another driver produced them."""
        path = tmp_path / "gpu.json"
        old = [{"group": "doctor", "name": "d", "outcome": "passed"}]
        old += [{"group": "AMP", "name": "a", "outcome": "failed"}]
        gpu.main.write(path, MACHINE, old, {"doctor", "AMP"})
        new = [{"group": "AMP", "name": "b", "outcome": "passed"}]
        gpu.main.write(path, MACHINE | {"date": "2026-12-01"}, new, {"AMP"})
        assert json.loads(path.read_text())["items"] == [old[0], new[0]]
        gpu.main.write(path, MACHINE | {"driver": "590.2"}, new, {"AMP"})
        assert json.loads(path.read_text())["items"] == new

    @pytest.mark.parametrize(
        "argv", [["--gpus", "2"], ["--rehearse", "x"], ["--rehearse", "DATA"]]
    )
    def test_a_rehearsal_is_never_taken_for_a_run(self, gpu, argv, capsys):
        """It can't write the file that pages show, and it needs --gpus."""
        argv = [str(gpu.main.DATA) if word == "DATA" else word for word in argv]
        with pytest.raises(SystemExit) as ended:
            gpu.main.main(argv + (["--gpus", "1"] if len(argv[-1]) > 4 else []))
        assert ended.value.code == 2
        assert "rehears" in capsys.readouterr().err


class TestItems:
    """The right items are played on one GPU, and on eight."""

    @pytest.mark.parametrize("num_gpus", [1, 8])
    def test_every_script_is_launched_on_one_to_all_gpus(self, gpu, num_gpus):
        """No script is forgotten; one that needs more GPUs is listed, but not run."""
        listed = gpu.main.items(num_gpus, "cuda")
        scripts = {path.stem for path in ROOT.glob("scripts/ch[0-9]*.py")}
        sizes = {script: [] for script in scripts}
        for item in listed:
            if item.group == "scripts":
                sizes[item.name.partition(",")[0]].append(item.needs)
        pages = fronts(ROOT, "least_ranks").values()
        least = {script: size for page in pages for script, size in page.items()}
        assert least and least.keys() <= scripts
        for script, found in sizes.items():
            start = least.get(script, 1)
            alone = "torchrun" not in (ROOT / f"scripts/{script}.py").read_text("utf8")
            every = list(range(start, max(start, num_gpus) + 1))
            assert found == every or (alone and found == [1]), script
        fake = gpu.play.Ended(0, "", 0.1)
        whys = {}
        for item in listed:
            if item.needs > num_gpus or item.why:
                whys[item.name] = gpu.play.play(item, num_gpus)
            elif item.group == "scripts":
                assert item.judge(fake)[0] == "passed"
        assert all(r["outcome"] == "not run" and r["why"] for r in whys.values())
        few = {"ch5_async, 2 ranks", "ch6_by_hand, 2 ranks", "ch6_pipeline, 2 ranks"}
        assert few <= set(whys) if num_gpus == 1 else not few & set(whys)

    def test_the_doctor_is_judged_by_its_checks(self, gpu):
        """It fails if a check fails, or with its last line if it prints no JSON."""
        check = {"name": "ecc", "status": "fail", "found": "2 errors", "fix": ""}
        text = json.dumps({"checks": [check | {"name": "gpus", "status": "ok"}, check]})
        outcome, facts = gpu.launches.doctor(gpu.play.Ended(1, text, 1.0))
        assert (outcome, facts["why"]) == ("failed", "these checks fail: ecc")
        assert facts["checks"] == {
            "gpus": ["ok", "2 errors"],
            "ecc": ["fail", "2 errors"],
        }
        outcome, facts = gpu.launches.doctor(gpu.play.Ended(1, "Killed", 1.0))
        assert outcome == "failed" and "Killed" in facts["why"]

    def test_a_launch_tells_its_devices_and_nccl(self, gpu):
        """Devices and NCCL's version are read from what the ranks print."""
        text = (
            "NCCL version 2.27.5+cuda12.9\n[rank 0/2] on cuda:0\n[rank 1/2] on cuda:1"
        )
        outcome, facts = gpu.launches.launched(gpu.play.Ended(0, text, 1.0))
        assert outcome == "passed"
        assert facts["devices"] == ["cuda:0", "cuda:1"]
        assert facts["nccl"] == "2.27.5+cuda12.9"


class TestMeasures:
    """The measuring programs also run here, on the CPU or a virtual GPU."""

    def test_memory_is_the_formulas_on_a_virtual_gpu(self, gpu):
        """A weight takes 4 bytes, its gradient 4 and its AdamW state 8, as measured."""
        (item,) = (i for i in gpu.measures.items(1, "cpu") if i.group == "memory")
        record = gpu.play.play(item, 1)
        assert record["outcome"] == "passed", record
        found = record["figures"]
        assert found["allocated"] == found["formula"]
        assert found["formula"]["optimizer"] == 8 * 4 * (256 * 256 + 256)
        assert found["peak_allocated"] > sum(found["formula"].values())

    def test_memory_off_the_formula_is_a_failure(self, gpu):
        """The record has the figures and the fault; no figures at all also fail."""
        ended = gpu.play.Ended(0, 'FIGURES {"a": 1, "fault": "weights take 5"}', 1.0)
        want = ("failed", {"figures": {"a": 1}, "why": "weights take 5"})
        assert gpu.measures.figures(ended) == want
        assert gpu.measures.figures(gpu.play.Ended(0, "no line", 1.0))[0] == "failed"
        assert gpu.measures.figures(gpu.play.Ended(1, ended.text, 1.0))[0] == "failed"

    def test_amp_trains_alike_in_all_kinds(self, gpu):
        """Losses of 16-bit training are close to float32's, but not the same."""
        found = gpu.on_gpu.amp(torch.device("cpu"))
        for kind in "bfloat16", "float16":
            assert 0 < abs(found[kind]["off_float32"]) < 0.01
            assert found[kind]["step_ms_min"] <= found[kind]["step_ms"]
        assert found["float32"]["off_float32"] == 0

    def test_the_guard_is_compared_in_pairs(self, gpu):
        """Rank 0 gives the ratio of the same steps with the guard and without it."""
        with Ranks(2) as ranks:
            first, second = ranks.run(gpu.on_gpu.guard, torch.device("cpu"), quiet=True)
        assert second == {}
        assert first["pairs"] == gpu.on_gpu.ROUNDS
        assert first["ratio_min"] <= first["ratio"] <= first["ratio_max"]
        assert first["backend"] == "gloo"


CASES = {case.slug: case for case in clinic.folder(ROOT / "clinic")}
QUOTED = [slug for slug, case in CASES.items() if not case.runs]


class TestCases:
    """A quoted message is judged as if a GPU had said it: by signs and diagnosis."""

    def test_every_quoted_case_is_played_or_says_why_not(self, gpu):
        """Every quoted case is in one of the two lists, and none is in both."""
        played, not_played = gpu.cases.PLAYED, gpu.cases.NOT_PLAYED
        assert set(QUOTED) <= set(played) | set(not_played)
        assert not set(played) & set(not_played)
        for code in (program.code for program in played.values()):
            compile(gpu.cases.HEAD + code, "program", "exec")

    def test_what_it_said_is_compared(self, gpu):
        """The quoted message passes, but another one does not."""
        tried = 0
        for slug in set(QUOTED) & set(gpu.cases.PLAYED):
            case = CASES[slug]
            judge = gpu.cases.judge(case, list(CASES.values()), gpu.cases.PLAYED[slug])
            outcome, facts = judge(gpu.play.Ended(1, case.quoted, 1.0))
            assert outcome == "passed", facts
            assert facts["signs"] and facts["diagnosis"][0] == slug
            other = gpu.play.Ended(1, "ValueError: optimizer got an empty list", 1.0)
            outcome, facts = judge(other)
            assert outcome == "failed" and "no sign matches" in facts["why"]
            tried += 1
        assert tried >= 5

    def test_another_diagnosis_first_is_a_failure(self, gpu):
        """With two messages in one log, only one case can be diagnosed first."""
        slugs = "cuda-oom", "duplicate-gpu"
        text = "\n".join(CASES[slug].quoted for slug in slugs)
        ends = []
        for slug in slugs:
            program = gpu.cases.PLAYED[slug]
            judge = gpu.cases.judge(CASES[slug], list(CASES.values()), program)
            outcome, facts = judge(gpu.play.Ended(1, text, 1.0))
            ends.append(facts.get("why", outcome))
        (first,) = (s for s, end in zip(slugs, ends, strict=True) if end == "passed")
        assert f"the diagnosis says {first} first" in ends

    def test_a_mistake_that_goes_through_is_told(self, gpu):
        """Exit code 0 is a failure if the case quotes a crash."""
        case = CASES["cuda-oom"]
        judge = gpu.cases.judge(case, [case], gpu.cases.PLAYED["cuda-oom"])
        outcome, facts = judge(gpu.play.Ended(0, "done", 1.0))
        assert (outcome, facts["why"]) == ("failed", "the mistake went through: done")

    def test_a_case_that_the_clinic_lacks_is_noted(self, gpu):
        """The message of a case that the clinic doesn't have is still recorded."""
        program = gpu.cases.PLAYED["device-side-assert"]
        judge = gpu.cases.judge(None, [], program)
        ended = gpu.play.Ended(1, "x\nRuntimeError: device-side assert triggered\ny", 1)
        outcome, facts = judge(ended)
        assert outcome == "passed"
        assert facts["said"] == "RuntimeError: device-side assert triggered"
        outcome, facts = judge(gpu.play.Ended(1, "Torch not compiled with CUDA", 1))
        assert outcome == "failed" and facts["why"].startswith("no 'device-side assert")

    def test_of_a_launch_the_ranks_last_line_is_told(self, gpu):
        """torchrun's digest is skipped, because it doesn't tell the cause."""
        text = (
            "[rank1]: RuntimeError: no kernel\nE1122 14:00:01.1 7 torch/distributed/"
            "elastic/multiprocessing/api.py:988] failed (exitcode: 1)\nTraceback\n"
            "ChildFailedError:\n====\n"
        )
        assert gpu.play.Ended(1, text, 1).last == "[rank1]: RuntimeError: no kernel"
        only = text.partition("\n")[2]
        assert gpu.play.Ended(1, only, 1).last == "ChildFailedError:"
        assert gpu.play.Ended(1, "", 1).last == ""
