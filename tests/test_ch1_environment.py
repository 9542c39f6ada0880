"""Chapter 1's doctor: it says what is wrong, never crashes, leaves nothing behind."""

import ast
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import collect_env

from allranks.topology import visible_devices
from scripts import ch1_environment as doctor

SCRIPT = Path(doctor.__file__)
MACHINES = SCRIPT.parents[1] / "tests/fixtures/ch1_environment"
PAGE = SCRIPT.parents[1] / "book/ch1_environment.md"
CALM = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT"}
LINE = re.compile(r"(ok|warn|fail) {1,4} [\w-]+ +\S| {19}(-> )?\S")


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    """No variable that a check looks at, and no answer from before."""
    for name in set(os.environ) - CALM:
        if re.match("CUDA|OMP|SLURM|OMPI|NCCL|GLOO|TORCHELASTIC", name):
            monkeypatch.delenv(name)
    for name in doctor.LAUNCH:
        monkeypatch.delenv(name, raising=False)
    forget = doctor.smi.cache_clear, doctor.addresses.cache_clear
    for clear in forget:
        clear()
    yield
    for clear in forget:
        clear()


@pytest.fixture
def machine(monkeypatch):
    """``machine("mig")`` puts a stand-in for nvidia-smi on the PATH."""

    def become(name):
        monkeypatch.setenv("SMI_MACHINE", name)
        monkeypatch.setenv("PATH", f"{MACHINES}{os.pathsep}{os.environ['PATH']}")
        doctor.smi.cache_clear()

    return become


@pytest.fixture
def fake_cuda(monkeypatch):
    """``fake_cuda("13.0", available=True, ...)`` gives the doctor another torch."""

    def become(wheel="13.0", available=True, devices=4, capability=(9, 0), **more):
        cuda = SimpleNamespace(
            is_available=lambda: available,
            is_initialized=lambda: False,
            device_count=lambda: devices if available else 0,
            get_device_capability=lambda i: capability,
            get_arch_list=lambda: ["sm_75", "sm_80", "sm_90", "compute_90"],
            can_device_access_peer=lambda i, j: True,
            nccl=SimpleNamespace(version=lambda: (2, 27, 5)),
        )
        vars(cuda).update(more)
        cudnn = SimpleNamespace(is_available=lambda: True, version=lambda: 91002)
        fake = SimpleNamespace(
            __version__="2.13.0+cu130",
            cuda=cuda,
            version=SimpleNamespace(cuda=wheel, hip=None),
            backends=SimpleNamespace(cudnn=cudnn),
            accelerator=SimpleNamespace(
                current_accelerator=lambda: torch.device("cuda"),
                is_available=lambda: available,
                device_count=lambda: devices,
            ),
        )
        monkeypatch.setattr(doctor, "torch", fake)
        monkeypatch.setattr(doctor.dist, "is_nccl_available", lambda: True)
        return cuda

    return become


def look(*names):
    """{name: (status, found, fix)} of a few checks."""
    facts = [doctor.examine(name) for name in names]
    return {f["name"]: (f["status"], f["found"], f["fix"]) for f in facts}


def status(name):
    return look(name)[name][0]


def start(*arguments, stdin=None, **variables):
    """Run the script as a user does, in a session of its own that must end empty."""
    kept = {name: value for name, value in os.environ.items() if name in CALM}
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=kept | {"SMI_MACHINE": os.environ.get("SMI_MACHINE", "")} | variables,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        with pytest.raises(ProcessLookupError):  # nobody of the group is left
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


# ---- the tool


def test_prints_one_line_per_check_and_what_to_do():
    """All lines have the form; each check is a line or skipped; two ranks did add."""
    code, out, err = start(SCRIPT)
    assert (code, err) == (0, "")
    *lines, total, skipped = out.splitlines()
    assert all(LINE.match(line) for line in lines), out
    shown = [line.split()[1] for line in lines if line[0] != " "]
    skipped = skipped.partition(" for ")[2].split(", ")
    assert sorted(shown + skipped) == sorted(doctor.CHECKS)
    assert re.search(r"^ok +all_reduce +1 \+ 2 = 3; .+ GB/s at 4 KiB", out, re.M)
    assert re.match(r"\S+: \d+ ok, \d+ warn, 0 fail, \d+ skip, in \d", total)


def test_every_warning_says_what_to_do(machine):
    """JSON: whatever is not well has a fix; the exit code tells of a failure."""
    machine("ecc_error")
    code, out, _ = start(SCRIPT, "--json", OMP_NUM_THREADS="0", RANK="1")
    report = json.loads(out)
    assert code == 1 and report["fail"] and report["warn"]
    assert [line["name"] for line in report["checks"]] == list(doctor.CHECKS)
    for line in report["checks"]:
        assert line["why"].endswith(".") and line["found"]
        assert line["fix"] or line["status"] in ("ok", "skip"), line


WRONG = [
    ["--only", "gpu"],
    ["--only", ""],  # a variable of a script that was never set
    ["--only", " , "],
    ["--only", "\n"],
    ["--only", "NUMPY"],
    ["--only", "numpy,é"],
    ["--only", "x" * 3000],
    ["--nope"],
    ["now"],
    [""],
]


@pytest.mark.parametrize("flags", WRONG, ids=lambda flags: repr(flags)[:30])
def test_answers_a_wrong_argument_in_a_sentence(flags, capsys):
    """It names the value and where to look; one line, however long the value is."""
    with pytest.raises(SystemExit) as end:
        doctor.main(flags)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and len(said) < 700
    assert repr(flags[-1].removeprefix("numpy,"))[:20] in said
    assert said.endswith("(--help tells what there is)\n")


def test_only_may_be_given_twice_and_counts_once(capsys):
    """The second flag does not take away the first."""
    doctor.main(["--only", "numpy, clock", "--only", "numpy,", "--list"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["numpy", "clock"]


def test_lists_every_check_with_its_reason(capsys):
    assert doctor.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(doctor.CHECKS) >= 28
    assert doctor.main(["--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(doctor.CHECKS)


def test_is_python_3_8():
    """Machines are older than laptops."""
    ast.parse(SCRIPT.read_text("utf8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("module", "error", "fix"),
    [
        ("torch", "ModuleNotFoundError: No module named 'torch'", "pip install torch"),
        ("torch", "OSError: libcudart.so.13", "pip install --force-reinstall torch"),
        ("numpy", "ModuleNotFoundError: no numpy", "pip install numpy"),
    ],
)
def test_runs_without_what_it_looks_for(module, error, fix, tmp_path):
    """torch or numpy absent or broken: a line, and all the rest is looked at."""
    kind, _, text = error.partition(": ")
    (tmp_path / f"{module}.py").write_text(f"raise {kind}({text!r})")
    code, out, err = start(SCRIPT, "--json", PYTHONPATH=str(tmp_path))
    lines = {line["name"]: line for line in json.loads(out)["checks"]}
    assert lines[module]["found"] == error and lines[module]["fix"].startswith(fix)
    assert lines["loopback"]["status"] == "ok"
    assert code == (1 if module == "torch" else 0)
    assert "Traceback" not in err


def test_runs_from_a_pipe():
    """``ssh HOST python3 - < ch1_environment.py``: there is no file to start again."""
    with SCRIPT.open() as script:
        code, out, _ = start("-", "--only", "torch,all_reduce", stdin=script)
    assert code == 0 and "1 + 2 = 3" in out


def test_starts_no_rank_from_a_pipe_that_would_need_the_file(tmp_path):
    """Where a fork is no choice: a sentence, not workers that die for 30 s."""
    text = SCRIPT.read_text("utf8")
    spawns = text.replace('"fork" if forks else "spawn"', '"spawn"')
    assert spawns != text
    (tmp_path / "script").write_text(spawns)
    with (tmp_path / "script").open() as script:
        code, out, err = start("-", "--only", "all_reduce", stdin=script)
    assert code == 0 and err == "" and "started from a pipe" in out
    assert "-> copy the file there and run it" in out


def test_a_check_that_breaks_or_hangs_is_a_line(monkeypatch):
    """Whatever is raised; and whoever waits is not waited for."""

    def leave():
        raise SystemExit("boom\nand more")

    wait = doctor.threading.Event().wait
    checks = {"breaks": (leave, [], 60), "hangs": (lambda: wait(30), [], 0.1)}
    for function, *_ in checks.values():
        function.__doc__ = "Why."
    monkeypatch.setattr(doctor, "CHECKS", checks)
    found = look(*checks)
    assert found["breaks"][:2] == ("warn", "this check broke: SystemExit: boom")
    assert found["hangs"][:2] == ("warn", "no answer in 0.1 s")


def test_under_torchrun_one_rank_of_a_machine_reports(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert doctor.main(["--json"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "local rank 3: local rank 0 reports\n")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert look("started")["started"][1].startswith("by torchrun, 8 times here")
    assert look("variables")["variables"][:2] == ("ok", "set by torchrun")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")  # stale: never silent
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert doctor.main(["--only", "variables"]) == 0
    assert "unset LOCAL_RANK LOCAL_WORLD_SIZE" in capsys.readouterr().out


def test_knows_a_slurm_job(monkeypatch):
    for name, value in {"JOB_ID": "7", "NODEID": "1", "NNODES": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert "Slurm job 7, node 1 of 4" in look("started")["started"][1]
    monkeypatch.setenv("MASTER_ADDR", "node0")  # as job scripts do
    assert status("variables") == "ok"


# ---- nvidia-smi

EXPECTED = {
    "titan_x": {"nvidia-smi": "ok", "ecc": "ok", "busy": "warn", "mode": "ok"},
    "h100_node": {"nvidia-smi": "ok", "ecc": "ok", "busy": "ok", "mode": "ok"},
    "mig": {"nvidia-smi": "ok", "mode": "warn", "busy": "ok"},
    "ecc_error": {"nvidia-smi": "ok", "ecc": "fail", "busy": "warn"},
    "no_devices": {"nvidia-smi": "warn", "gpus": "skip", "busy": "skip"},
    "mismatch": {"nvidia-smi": "fail", "gpus": "skip", "ecc": "skip"},
    "no_driver": {"nvidia-smi": "fail", "gpus": "skip", "mode": "skip"},
}


def test_every_recorded_machine_is_expected_and_explained():
    folders = {path.name for path in MACHINES.iterdir() if path.is_dir()}
    text = (MACHINES / "README.md").read_text("utf8")
    assert folders == set(EXPECTED)
    assert all(f"| `{name}` |" in text for name in folders)


@pytest.mark.parametrize("name", EXPECTED)
def test_machines(name, machine):
    """What the doctor thinks of each."""
    machine(name)
    found = look(*EXPECTED[name])
    assert {check: result[0] for check, result in found.items()} == EXPECTED[name]
    for result in found.values():
        assert result[2] or result[0] in ("ok", "skip")


def test_a_driver_of_2018_does_not_know_all_fields(machine):
    """The two fields that it lacks are dropped, and come back empty."""
    machine("titan_x")
    refused, code = doctor.run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv")
    assert (refused.strip(), code) == (
        'Field "compute_cap" is not a valid field to query.',
        2,
    )
    gpus, problem = doctor.smi()
    assert problem is None and [gpu["index"] for gpu in gpus] == ["0", "1", "2", "3"]
    assert {gpu["compute_cap"] + gpu["mig.mode.current"] for gpu in gpus} == {""}
    assert [len(gpu["processes"]) for gpu in gpus] == [4, 1, 3, 3]


def test_what_the_page_says_of_the_four_titans(machine):
    """The figures in its prose are the fixture's; the choice is the doctor's."""
    machine("titan_x")
    text = PAGE.read_text("utf8")
    gpus = doctor.smi()[0]
    for gpu in gpus:
        used, free, total = (int(gpu[f"memory.{k}"]) for k in ("used", "free", "total"))
        assert used + free == total == 12196
    for index, fact in (3, "4052 MiB"), (0, "1201 MiB"), (0, "10995 MiB"):
        assert fact.split()[0] in gpus[index].values() and fact in text
    assert look("busy")["busy"][2].startswith("CUDA_VISIBLE_DEVICES=3 ")
    assert look("topology")["topology"][1].startswith("PIX 2-3; PHB 0-1; SYS 0-2")


def test_a_faulty_gpu_is_not_recommended(machine):
    """GPU 1 has errors, GPU 2 is in use."""
    machine("ecc_error")
    found = look("ecc", "busy")
    assert found["ecc"][1].startswith("GPU 1: 2 errors") and "-i 1" in found["ecc"][2]
    assert found["busy"][2] == "CUDA_VISIBLE_DEVICES=0,3 python ..."


def test_an_updated_driver_needs_a_reboot(machine):
    machine("mismatch")
    _, found, fix = look("nvidia-smi")["nvidia-smi"]
    assert found.endswith("Driver/library version mismatch") and fix == "sudo reboot"


def test_split_and_exclusive_gpus_are_both_told(machine):
    machine("mig")
    _, found, fix = look("mode")["mode"]
    assert "GPU 0: mig.mode.current" in found and "GPU 1: compute_mode" in found
    assert fix == "sudo nvidia-smi -i 0 -mig 0; sudo nvidia-smi -i 1 -c DEFAULT"


def test_a_driver_that_hangs_is_left_and_nothing_remains(machine, monkeypatch):
    """Its child too is ended: it would hold our pipe."""
    machine("h100_node")
    monkeypatch.setattr(doctor, "WAIT_S", 0.5)
    seconds = f"61.{int.from_bytes(os.urandom(4), 'big')}"
    monkeypatch.setenv("SMI_HANG", seconds)  # a number that no other process has
    assert look("nvidia-smi")["nvidia-smi"][:2] == (
        "fail",
        "no answer in 0.5 s: the driver hangs",
    )
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"]]
    assert [p for p in left if seconds in p.info["cmdline"]] == []


@pytest.fixture
def says(tmp_path, monkeypatch):
    """``says("row", code=14)`` writes a nvidia-smi with a header and these lines."""

    def become(*rows, code=0, after=""):
        header = doctor.FIELDS.replace(",", ", ")
        lines = [f"echo '{line}'" for line in (header, *rows)]
        if not rows:
            lines = []
        text = "\n".join(["#!/bin/bash", *lines, after, f"exit {code}\n"])
        (tmp_path / "nvidia-smi").write_bytes(text.encode("latin1"))
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        doctor.smi.cache_clear()

    return become


ROW = "0, A, GPU-0, 580, 100, 1, 99, 0, 9.0, Default, [N/A], 0"


def test_a_wrapper_that_leaves_a_child_has_answered(says, monkeypatch):
    """Its output counts, and the child that holds the pipe is ended."""
    monkeypatch.setattr(doctor, "WAIT_S", 0.5)
    seconds = f"62.{int.from_bytes(os.urandom(4), 'big')}"
    says(ROW, after=f"sleep {seconds} &")
    assert look("nvidia-smi")["nvidia-smi"][:2] == ("ok", "driver 580")
    left = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if seconds in line]


def test_a_byte_that_is_not_utf_8_breaks_no_check(says):
    says(ROW.replace("A", "A\xb5"))
    assert look("nvidia-smi")["nvidia-smi"][0] == "ok"
    assert look("gpus")["gpus"][1].startswith("1 x A\ufffd")


def test_a_corrupted_inforom_is_a_warning(says):
    """Exit code 14: the rows are valid, the GPU computes."""
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    says(ROW, warning, code=14)
    status, found, fix = look("nvidia-smi")["nvidia-smi"]
    assert (status, found) == ("warn", f"exit code 14: {warning}") and fix


def test_a_row_of_a_lost_gpu_fails_and_is_not_chosen(says):
    says(ROW, "1, " + ", ".join(["[GPU is lost]"] * 11))
    assert look("nvidia-smi")["nvidia-smi"][0] == "fail"
    assert [gpu["index"] for gpu in doctor.smi()[0]] == ["0"]


def test_what_is_not_known_is_said(says):
    """No memory, no matrix; and a GPU that lets nobody in."""
    row = ROW.replace("100, 1, 99", "[N/A], [N/A], [N/A]")
    says(
        row.replace("Default", "Prohibited"), "1" + row[1:], after="[ $1 = topo ] && :"
    )
    found = look("gpus", "topology", "mode")
    assert found["gpus"][1] == "2 x A, memory not known"
    assert found["topology"][1].startswith("not known")
    assert found["mode"][0] == "warn" and "GPU 0" in found["mode"][1]


def test_neighbours_are_advised_only_if_both_are_idle(machine):
    """What ``busy`` says is taken is not recommended two lines below."""
    machine("titan_x")
    assert look("topology")["topology"][2] == ""
    machine("h100_node")
    matrix = "GPU0 X PIX SYS SYS\nGPU1 PIX X SYS SYS\nGPU2 SYS SYS X PIX\n"
    matrix += "GPU3 SYS SYS PIX X"
    doctor.smi()[0][1]["processes"] = ["7"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "run", lambda *command: (matrix, 0))
        assert look("topology")["topology"][2].endswith("=2,3")


def test_one_lost_gpu_is_a_failure_although_others_answer(tmp_path, monkeypatch):
    """A line that is no row is not taken for one; the exit code counts."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU1'\n"
        f"echo '{doctor.FIELDS.replace(',', ', ')}'\n"
        "echo '0, A, GPU-0, 580, 100, 1, 99, [N/A], 9.0, Default, [N/A], 0'\n"
        "echo 'GPU1: lost, too'\nexit 15\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpus, problem = doctor.smi()
    assert [gpu["name"] for gpu in gpus] == ["A"]
    assert problem[0] == "fail" and problem[1].startswith("exit code 15: Unable")


@pytest.mark.parametrize("name", ["titan_x", "h100_node"])
def test_links_has_every_pair_once(name):
    """NICs and affinities are not GPUs; the underlined header is no row."""
    pairs = doctor.links((MACHINES / name / "topo.txt").read_text())
    n = 4 if name == "titan_x" else 8
    assert set(pairs) == {(i, j) for i in range(n) for j in range(i + 1, n)}
    assert all(link.startswith(doctor.LINKS) for link in pairs.values())


def test_more_nvlinks_are_nearer(machine, monkeypatch):
    """Of GPUs joined in a ring, the pair with two links, not the first pair."""
    machine("h100_node")
    matrix = (
        "GPU0 X NV1 NV2 SYS\nGPU1 NV1 X SYS NV2\nGPU2 NV2 SYS X NV1\nGPU3 SYS NV2 NV1 X"
    )
    monkeypatch.setattr(doctor, "links", lambda text, links=doctor.links: links(matrix))
    _, found, fix = look("topology")["topology"]
    assert found == "NV2 0-2 1-3; NV1 0-1 2-3; SYS 0-3 1-2" and fix.endswith("=0,2")


def test_a_tool_that_cannot_be_executed(tmp_path, monkeypatch):
    """One line says so; no check breaks."""
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look("nvidia-smi", "gpus", "cores")
    assert found["nvidia-smi"][0] == "fail" and "OSError" in found["nvidia-smi"][1]
    assert found["gpus"][0] == "skip" and found["cores"][0] == "ok"


@given(st.lists(st.sampled_from(["0", "1", "7", "-1", "", " 2", "GPU-4", "x"])))
def test_reads_a_mask_as_the_topology_module_does(entries):
    """Two readers of CUDA_VISIBLE_DEVICES, written apart, agree."""
    uuids = [f"GPU-{i}" for i in range(5)]
    gpus = [{"index": str(i), "uuid": uuid} for i, uuid in enumerate(uuids)]
    mask = ",".join(entries)
    if len({entry.startswith("GPU-") for entry in entries}) < 2:  # not mixed
        ours = [int(gpu["index"]) for gpu in doctor.chosen(mask, gpus)]
        assert ours == visible_devices(mask, 5, uuids)


# ---- driver, wheel, GPU


VERSIONS = st.tuples(st.integers(390, 700), st.integers(0, 300), st.integers(0, 99))


@given(VERSIONS, VERSIONS, st.sampled_from([11, 12, 13]))
def test_a_newer_driver_runs_what_an_older_one_does(one, other, cuda):
    """And each driver runs an older CUDA if it runs a newer."""
    old, new = (".".join(map(str, v)) for v in sorted([one, other]))
    assert doctor.driver_runs(new, f"{cuda}.0") >= doctor.driver_runs(old, f"{cuda}.0")
    if cuda > 11 and doctor.driver_runs(old, f"{cuda}.4"):
        assert doctor.driver_runs(old, f"{cuda - 1}.8")


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("580.65.06", "13.0", True),
        ("579.99", "13.0", False),
        ("525.60.13", "12.6", True),
        ("525.60.12", "12.0", False),
        ("450.80.02", "11.8", True),
        ("390.48", "11.8", False),
        ("999.1", "14.0", None),
    ],
)
def test_driver_limits(driver, cuda, runs):
    """NVIDIA's table of minor version compatibility."""
    assert doctor.driver_runs(driver, cuda) is runs


@given(st.integers(5, 12), st.integers(0, 9), st.integers(5, 12), st.integers(0, 9))
def test_code_runs_on_its_major_version_and_source_on_all_later(a, b, x, y):
    gpu = f"{x}.{y}"
    assert doctor.arch_runs(gpu, [f"sm_{a}{b}"]) == (a == x and b <= y)
    assert doctor.arch_runs(gpu, [f"sm_{a}{b}a"]) == ((a, b) == (x, y))
    assert doctor.arch_runs(gpu, [f"compute_{a}{b}"]) == ((a, b) <= (x, y))
    assert not doctor.arch_runs(gpu, [])


def test_an_old_driver_under_a_new_wheel_fails(machine, fake_cuda):
    machine("titan_x")
    fake_cuda("12.6", available=False)
    result = look("driver", "accelerator")
    assert result["driver"][:2] == ("fail", "390.48; the wheel's CUDA is 12.6: too old")
    assert result["driver"][2] == "update the driver to 525.60.13 or newer"
    assert result["accelerator"][0] == "fail" and "torch.cuda.init" in str(result)
    machine("h100_node")
    assert status("driver") == "ok"


def test_an_old_driver_with_the_compatibility_package_runs(machine, fake_cuda):
    """If CUDA starts, it starts, whatever the table says."""
    machine("titan_x")
    fake_cuda("12.6", available=True)
    assert status("driver") == "ok"


def test_a_cpu_wheel_beside_gpus_fails(machine):
    if torch.version.cuda:
        pytest.skip("this torch is built for CUDA")
    machine("h100_node")
    result, fix = look("accelerator")["accelerator"][1:]
    assert result.startswith("8 GPUs") and "CUDA wheel" in fix
    assert status("driver") == "skip"


@pytest.mark.parametrize("capability", [(9, 0), (10, 3), (7, 5), (7, 0), (6, 1)])
def test_a_wheel_without_code_for_the_gpu_fails(capability, machine, fake_cuda):
    machine("h100_node")
    fake_cuda(capability=capability)
    assert status("capability") == ("ok" if capability >= (7, 5) else "fail")


def test_capability_without_cuda_is_nvidia_smis(machine, fake_cuda):
    """A driver that fails still tells what the GPU is."""
    machine("h100_node")
    fake_cuda(available=False)
    assert look("capability")["capability"][:2] == ("ok", "9.0")


def test_versions_of_the_wheels_libraries(monkeypatch, fake_cuda):
    """cuDNN counts otherwise since 9; a folder of the user's own hides the wheel's."""
    fake_cuda()
    found = look("libraries")["libraries"]
    assert found[0] == "ok" and found[1].startswith("cuDNN 9.10.2, NCCL 2.27.5")
    doctor.torch.backends.cudnn.version = lambda: 8902
    assert "cuDNN 8.9.2" in look("libraries")["libraries"][1]
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/x:/usr/local/cuda-11/lib64")
    assert status("libraries") == "warn"


def test_peer_access(fake_cuda):
    """Every ordered pair is asked."""
    fake_cuda(devices=3)
    assert look("peer")["peer"][:2] == ("ok", "between all 3")
    fake_cuda(devices=3, can_device_access_peer=lambda i, j: (i, j) != (2, 0))
    assert look("peer")["peer"][:2] == ("warn", "none for 1 of 6 pairs: 2-0")
    fake_cuda(devices=1)
    assert status("peer") == "ok" and status("nccl") == "ok"


def test_nccl_is_tried_on_two_gpus_in_fresh_processes(monkeypatch, fake_cuda):
    """A fork would inherit a CUDA that has started."""
    fake_cuda(devices=2)
    tried = []
    monkeypatch.setattr(
        doctor, "all_reduce", lambda *a: (tried.append(a), ("ok", "x"))[1]
    )
    assert status("nccl") == "ok" and tried[0][:2] == ("nccl", "spawn")


def test_a_mask_that_comes_too_late(monkeypatch, fake_cuda):
    """It differs from the one that the process was started with."""
    fake_cuda(is_initialized=lambda: True)
    monkeypatch.setattr(
        doctor, "text_of", lambda path: "A=1\0CUDA_VISIBLE_DEVICES=1\0B=2"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert status("visible") == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found, fix = look("visible")["visible"][1:]
    assert "after CUDA had started" in found
    assert fix == "CUDA_VISIBLE_DEVICES=0,1 python ..."
    fake_cuda(is_initialized=lambda: False)
    assert status("visible") == "ok"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [("0,3", "ok"), ("0,8", "warn"), ("", "warn"), ("1,1", "warn"), ("MIG-1", "ok")],
)
def test_masks(mask, expected, machine, monkeypatch):
    machine("h100_node")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    assert status("visible") == expected


def test_gpus_of_two_kinds(machine, monkeypatch):
    """torch counts them otherwise than nvidia-smi, and the slow one sets the pace."""
    machine("h100_node")
    doctor.smi()[0][5]["name"] = "NVIDIA T4"
    assert look("gpus", "visible")["gpus"][0] == "warn"
    assert look("visible")["visible"][2] == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert status("visible") == "ok"


# ---- the machine


def files(monkeypatch, texts):
    """Let the doctor read these files, and no other."""
    monkeypatch.setattr(doctor, "text_of", lambda path: texts.get(str(path), ""))


def test_limits_of_a_cgroup_of_version_2(monkeypatch):
    """A limit may stand on any level above the process."""
    group = "/sys/fs/cgroup/job/step"
    files(
        monkeypatch,
        {
            "/proc/self/cgroup": "0::/job/step",
            f"{group}/memory.max": "max",
            "/sys/fs/cgroup/job/memory.max": str(2**30),
            f"{group}/cpu.max": "150000 100000",
            "/proc/meminfo": "MemTotal: 9\nMemAvailable:   99999999 kB",
        },
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert "the container's limit is 1.0 GiB" in look("memory")["memory"][1]
    assert look("cores")["cores"][1].startswith("1 of ")


def test_limits_of_a_cgroup_of_version_1(monkeypatch):
    """It has a tree for each resource."""
    path = "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes"
    texts = {"/proc/self/cgroup": "4:memory:/docker\n3:cpu:/x", path: str(2**29)}
    files(monkeypatch, texts)
    cpu = "/sys/fs/cgroup/cpu/x/cpu.cfs_"
    texts |= {f"{cpu}quota_us": "100000", f"{cpu}period_us": "100000"}
    assert look("cores")["cores"][1].startswith("1 of ")
    status, found, _ = look("memory")["memory"]
    assert status == "warn" and "limit is 0.5 GiB: below 1 GiB per rank" in found


@pytest.mark.parametrize("value", ["0", "-2", "four", "1000000", "²"])
def test_impossible_numbers_of_threads(value, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    status, _, fix = look("cores")["cores"]
    assert status == "warn" and re.fullmatch(r"export OMP_NUM_THREADS=[1-9]\d*", fix)


def test_fewer_than_two_cores_for_a_gpu(machine, monkeypatch):
    machine("h100_node")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(15)))
    assert status("cores") == "warn"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert status("cores") == "ok"


def test_small_shared_memory_few_files_and_a_wrong_clock(monkeypatch):
    import resource

    disk = SimpleNamespace(f_frsize=4096, f_blocks=2**14, f_bavail=2**14)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)  # Docker's 64 MB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 10**6))
    monkeypatch.setattr(doctor.time, "time", lambda: 0)
    found = look("shm", "files", "clock")
    assert [result[0] for result in found.values()] == ["warn"] * 3
    assert "--ipc=host" in found["shm"][2] and found["files"][2] == "ulimit -n 65536"


# ---- the network, and two ranks


def test_a_name_without_an_address(monkeypatch):
    """The machine's own name is not known: gloo falls back to the loopback."""

    def unknown(*args):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    status, found, fix = look("hostname")["hostname"]
    assert status == "warn" and "Name or service" in found and "/etc/hosts" in fix
    monkeypatch.setenv("MASTER_ADDR", "x" * 300)  # no label of a name is so long
    assert look("rendezvous")["rendezvous"][2] == "unset MASTER_ADDR"
    if sys.platform == "linux":
        assert "gloo takes lo" in look("interfaces")["interfaces"][1]
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    assert look("rendezvous")["rendezvous"][0] == "fail"


def test_ports():
    """A taken one is a warning, a word is a failure."""
    with socket.create_server(("", 0)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        assert look("rendezvous")["rendezvous"][0] == "warn"
        for port in "http", "0", "65536", "-1", "²":
            patch.setenv("MASTER_PORT", port)
            assert look("rendezvous")["rendezvous"][0] == "fail"


CARDS = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.5"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's interfaces")


@LINUX
@pytest.mark.parametrize(
    ("cards", "own", "gloo", "nccl"),
    [
        (CARDS, "10.0.0.5", "eth0", "eth0"),
        (CARDS, "127.0.1.1", "lo", "eth0"),
        (CARDS | {"ibp3": "10.1.0.5"}, "10.0.0.5", "eth0", "ibp3"),
        ({"lo": "127.0.0.1"}, "127.0.0.1", "lo", "lo"),
    ],
)
def test_who_takes_which_interface(cards, own, gloo, nccl, monkeypatch):
    """gloo the one of the machine's name; NCCL InfiniBand, never Docker's."""
    monkeypatch.setattr(doctor, "interfaces", lambda: cards)
    monkeypatch.setattr(doctor, "addresses", lambda: [own])
    status, found, _ = look("interfaces")["interfaces"]
    assert status == "ok" and found.endswith(f"gloo takes {gloo}, NCCL {nccl}")


@LINUX
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail"),  # gloo wants the whole name
        ("GLOO_SOCKET_IFNAME", "ib0", "fail"),
        ("GLOO_SOCKET_IFNAME", "lo,eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "^docker", "fail"),  # the syntax is NCCL's alone
        ("GLOO_SOCKET_IFNAME", "==lo", "fail"),
        ("GLOO_SOCKET_IFNAME", "=lo,bogus", "fail"),
        ("GLOO_SOCKET_IFNAME", "eth0,bogus", "fail"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth0", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth", "fail"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "ok"),
        ("NCCL_SOCKET_IFNAME", "ib", "fail"),
    ],
)
def test_interfaces_by_name(variable, value, expected, monkeypatch):
    """gloo takes names, NCCL beginnings, =names and ^exceptions."""
    monkeypatch.setattr(doctor, "interfaces", lambda: CARDS)
    monkeypatch.setattr(doctor, "addresses", lambda: ["10.0.0.5"])
    monkeypatch.setenv(variable, value)
    status, _, fix = look("interfaces")["interfaces"]
    assert (status, fix) == (expected, f"unset {variable}" * (expected == "fail"))


@LINUX
def test_a_loopback_between_machines(monkeypatch):
    """Two nodes, and a name that means 127.0.1.1."""
    monkeypatch.setattr(doctor, "interfaces", lambda: CARDS)
    monkeypatch.setattr(doctor, "addresses", lambda: ["127.0.1.1"])
    monkeypatch.setenv("SLURM_NNODES", "2")
    status, _, fix = look("interfaces")["interfaces"]
    assert (status, fix) == ("warn", "export GLOO_SOCKET_IFNAME=eth0")


@LINUX
def test_the_cure_for_a_name_is_not_what_is_wrong_on_two_machines(monkeypatch):
    """127.0.1.1 for the own name keeps gloo on the loopback, so it is no cure."""
    cards = CARDS | {"ibp3": "10.1.0.5"}
    monkeypatch.setattr(doctor, "interfaces", lambda: cards)
    monkeypatch.setattr(doctor, "addresses", lambda: socket.getaddrinfo("", "x", 9))
    fix = look("hostname")["hostname"][2]
    address = re.match(r'echo "(\S+) \S+" \| sudo tee -a /etc/hosts$', fix)[1]
    assert address == "10.1.0.5"
    monkeypatch.setenv("SLURM_NNODES", "2")
    for own, expected in ("127.0.1.1", "warn"), (address, "ok"):
        monkeypatch.setattr(doctor, "addresses", lambda own=own: [own])
        assert status("interfaces") == expected
        found = look("hostname")["hostname"][1]
        assert ("others do not" in found) == (expected == "warn")
    monkeypatch.setattr(doctor, "interfaces", lambda: {"lo": "127.0.0.1"})
    monkeypatch.setattr(doctor, "addresses", lambda: socket.getaddrinfo("", "x", 9))
    assert '"127.0.0.1 ' in look("hostname")["hostname"][2]  # there is no other


def children():
    return psutil.Process().children(recursive=True)


@LINUX
def test_two_ranks_fail_with_a_reason(monkeypatch):
    """A wrong interface, a wrong sum, a rank that dies: each a line; none remains."""
    before = children()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch")
    status, found, fix = look("all_reduce")["all_reduce"]
    assert status == "fail" and "nosuch" in found and "GLOO_SOCKET_IFNAME=lo" in fix
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(doctor.dist, "all_reduce", lambda x: x.add_(1))
    status, found, _ = look("all_reduce")["all_reduce"]
    assert status == "fail" and found == "AssertionError: 1 + 2 = [2.0]"
    monkeypatch.setattr(doctor, "WAIT_S", 1)
    monkeypatch.setattr(doctor.dist, "all_reduce", lambda x: os._exit(1))
    status, found, _ = look("all_reduce")["all_reduce"]
    assert status == "fail" and found == "TimeoutError: no answer"
    assert children() == before


@LINUX
def test_no_folder_for_temporary_files(monkeypatch):
    """The remedy is a folder, not a network interface."""

    def none(*args):
        raise FileNotFoundError("[Errno 2] No usable temporary directory found in []")

    monkeypatch.setattr(doctor.tempfile, "TemporaryDirectory", none)
    status, _, fix = look("all_reduce")["all_reduce"]
    assert status == "fail" and fix.startswith("TMPDIR=")


@LINUX
@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        (">/dev/full", 1, "cannot print what was found: [Errno 28] No space left"),
        (">&-", 0, ""),
        ("| true", 141, ""),
        ("2>/dev/full --only nope", 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(where, code, said):
    """A full disk is told, a reader who has left is not; neither ends with 0."""
    command = f"{sys.executable} {SCRIPT} --only numpy {where}; exit ${{PIPESTATUS[0]}}"
    end = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=60)
    assert end.returncode == code and end.stderr.count(b"\n") == bool(said)
    assert said in end.stderr.decode()


def test_ctrl_c_while_torch_is_imported_is_no_traceback(tmp_path):
    """The import takes most of the doctor's time, so this is where it falls."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    assert start(SCRIPT, PYTHONPATH=str(tmp_path)) == (130, "", "")


def test_what_the_page_says_of_collect_env():
    """What torch's own report has, and what it lacks."""
    has = " ".join(collect_env.SystemEnv._fields)
    for field in "torch_version", "nvidia_driver", "gpu_models", "gcc", "cudnn", "cpu":
        assert field in has
    for field in "shm", "topo", "memory", "process", "interface", "port", "ecc":
        assert field not in has


def installs():
    """Every install command of the page, in console blocks and in its table."""
    text = PAGE.read_text("utf8")
    return re.findall(r"(?:^\$ |`)((?:uv )?pip install torch\b[^`#\n]*)", text, re.M)


def test_install_commands_name_the_release_that_the_book_runs():
    """The pin of requirements.txt, an index of this release, a backend uv knows."""
    pins = (SCRIPT.parents[1] / "requirements.txt").read_text("utf8")
    pin = re.search(r"^(torch==\S+)", pins, re.M)[1]
    builds = {"cpu", "cu126", "cu130", "cu132", "rocm7.2"}
    found = set()
    for command in installs():
        words = shlex.split(command)
        where = words[words.index("install") + 2 :]
        assert words[words.index("install") + 1] == pin, command
        if where and words[0] == "uv":
            assert where[0] == "--torch-backend" and len(where) == 2
            assert where[1] in builds | {"auto"}
        elif where:
            assert where[0] == "--index-url" and len(where) == 2
            base, _, build = where[1].rpartition("/")
            assert base == "https://download.pytorch.org/whl" and build in builds
        found.add((words[0], where[-1].rpartition("/")[2] if where else ""))
    for way in "cpu", "", "cu126", "rocm7.2":
        assert ("pip", way) in found
    assert {("uv", "cpu"), ("uv", "auto")} <= found


def test_pip_understands_the_install_commands():
    """Its own parser reads each line: no flag is misspelt."""
    from pip._internal.commands import create_command

    lines = [c for c in installs() if not c.startswith("uv")]
    assert len(lines) >= 4
    for line in lines:
        options, wanted = create_command("install").parse_args(shlex.split(line)[2:])
        assert [str(word) for word in wanted] == ["torch==2.13.0"]
        assert options.index_url.startswith("https://")


def test_the_page_and_the_errata_say_the_same_of_plain_pip():
    """The CUDA of the wheel's metadata, and the driver that NVIDIA asks for it."""
    text = " ".join(PAGE.read_text("utf8").split())
    row = (SCRIPT.parents[1] / "errata/c5_cuda_by_hand.py").read_text("utf8")
    toolkit = re.search(r"cuda-toolkit\S*==([\d.]+)", row)[1]
    assert f"`cuda-toolkit=={toolkit}`" in text
    brings, needs = re.search(
        r"wheel brings CUDA ([\d.]+) \| (\d+) or newer", text
    ).groups()
    assert toolkit.startswith(brings)
    assert doctor.driver_runs(needs, brings) and not doctor.driver_runs("579.9", brings)
    older = re.search(r"\| `cu126` \|[^|]+\| ([\d.]+) or newer", text)[1]
    assert doctor.driver_runs(older, "12.6")
    assert not doctor.driver_runs("525.60.12", "12.6")
