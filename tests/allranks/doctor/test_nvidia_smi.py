"""nvidia-smi is understood on recorded machines, and when it gives no answer."""

import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.base.paths import ROOT
from allranks.doctor import nvidia_smi
from allranks.doctor.checks.gpus import LINKS
from allranks.topics.topology.sums import visible_devices
from tests.allranks.doctor.asking import MACHINES, look

PAGE = ROOT / "book" / "ch1_environment.md"
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
    """The verdicts on each machine are as expected, and each problem gets advice."""
    machine(name)
    found = look(*EXPECTED[name])
    assert {check: result[0] for check, result in found.items()} == EXPECTED[name]
    for result in found.values():
        assert result[2] or result[0] in ("ok", "skip")


def test_a_driver_of_2018_does_not_know_all_fields(machine):
    """Two fields that this driver doesn't know are left out, and come back empty."""
    machine("titan_x")
    ask = "nvidia-smi", "--query-gpu=compute_cap", "--format=csv"
    refused, code = nvidia_smi.run(*ask)
    assert (refused.strip(), code) == (
        'Field "compute_cap" is not a valid field to query.',
        2,
    )
    gpus, problem = nvidia_smi.survey()
    assert problem is None and [gpu["index"] for gpu in gpus] == ["0", "1", "2", "3"]
    assert {gpu["compute_cap"] + gpu["mig.mode.current"] for gpu in gpus} == {""}
    assert [len(gpu["processes"]) for gpu in gpus] == [4, 1, 3, 3]


def test_what_the_page_says_of_the_four_titans(machine):
    """The page's figures are the recorded machine's, and its choice the doctor's."""
    machine("titan_x")
    text = PAGE.read_text("utf8")
    gpus = nvidia_smi.survey()[0]
    for gpu in gpus:
        used, free, total = (int(gpu[f"memory.{k}"]) for k in ("used", "free", "total"))
        assert used + free == total == 12196
    for index, fact in (3, "4052 MiB"), (0, "1201 MiB"), (0, "10995 MiB"):
        assert fact.split()[0] in gpus[index].values() and fact in text
    assert look("busy")["busy"][2].startswith("CUDA_VISIBLE_DEVICES=3 ")
    assert look("topology")["topology"][1].startswith("PIX 2-3; PHB 0-1; SYS 0-2")


def test_an_updated_driver_needs_a_reboot(machine):
    machine("mismatch")
    _, found, fix = look("nvidia-smi")["nvidia-smi"]
    assert found.endswith("Driver/library version mismatch") and fix == "sudo reboot"


def left(seconds):
    """Return the command lines of processes that sleep for this number of seconds."""
    lines = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if seconds in line]


def test_a_driver_that_hangs_is_left_and_nothing_remains(machine, monkeypatch):
    """Its child is ended too, because it would keep our pipe open."""
    machine("h100_node")
    monkeypatch.setattr(nvidia_smi, "WAIT_S", 0.5)
    seconds = f"61.{int.from_bytes(os.urandom(4), 'big')}"
    monkeypatch.setenv("SMI_HANG", seconds)  # a number that no other process has
    assert look("nvidia-smi")["nvidia-smi"][:2] == (
        "fail",
        "no answer in 0.5 s: the driver hangs",
    )
    assert left(seconds) == []


ROW = "0, A, GPU-0, 580, 100, 1, 99, 0, 9.0, Default, [N/A], 0"


def test_a_wrapper_that_leaves_a_child_has_answered(says, monkeypatch):
    """The output counts, and the child that keeps the pipe open is ended."""
    monkeypatch.setattr(nvidia_smi, "WAIT_S", 0.5)
    seconds = f"62.{int.from_bytes(os.urandom(4), 'big')}"
    says(ROW, after=f"sleep {seconds} &")
    assert look("nvidia-smi")["nvidia-smi"][:2] == ("ok", "driver 580")
    assert left(seconds) == []


def test_a_byte_that_is_not_utf_8_breaks_no_check(says):
    says(ROW.replace("A", "A\xb5"))
    assert look("nvidia-smi")["nvidia-smi"][0] == "ok"
    assert look("gpus")["gpus"][1].startswith("1 x A\ufffd")


def test_a_corrupted_inforom_is_a_warning(says):
    """Exit code 14 is a warning: the rows are valid, and the GPU computes."""
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    says(ROW, warning, code=14)
    status, found, fix = look("nvidia-smi")["nvidia-smi"]
    assert (status, found) == ("warn", f"exit code 14: {warning}") and fix


def test_a_row_of_a_lost_gpu_fails_and_is_not_chosen(says):
    says(ROW, "1, " + ", ".join(["[GPU is lost]"] * 11))
    assert look("nvidia-smi")["nvidia-smi"][0] == "fail"
    assert [gpu["index"] for gpu in nvidia_smi.survey()[0]] == ["0"]


def test_what_is_not_known_is_said(says):
    """Unknown memory and links are reported as such; a GPU closed to jobs is named."""
    row = ROW.replace("100, 1, 99", "[N/A], [N/A], [N/A]")
    closed = row.replace("Default", "Prohibited")
    says(closed, "1" + row[1:], after="[ $1 = topo ] && :")
    found = look("gpus", "topology", "mode")
    assert found["gpus"][1] == "2 x A, memory not known"
    assert found["topology"][1].startswith("not known")
    assert found["mode"][0] == "warn" and "GPU 0" in found["mode"][1]


def test_one_lost_gpu_is_a_failure_although_others_answer(tmp_path, monkeypatch):
    """The non-zero exit code is a failure, and lines that are not rows are ignored."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU1'\n"
        f"echo '{nvidia_smi.FIELDS.replace(',', ', ')}'\n"
        "echo '0, A, GPU-0, 580, 100, 1, 99, [N/A], 9.0, Default, [N/A], 0'\n"
        "echo 'GPU1: lost, too'\nexit 15\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    gpus, problem = nvidia_smi.survey()
    assert [gpu["name"] for gpu in gpus] == ["A"]
    assert problem[0] == "fail" and problem[1].startswith("exit code 15: Unable")


@pytest.mark.parametrize("name", ["titan_x", "h100_node"])
def test_links_has_every_pair_once(name):
    """NICs, affinities and the underlined header are not taken for GPUs."""
    pairs = nvidia_smi.links((MACHINES / name / "topo.txt").read_text())
    n = 4 if name == "titan_x" else 8
    assert set(pairs) == {(i, j) for i in range(n) for j in range(i + 1, n)}
    assert all(link.startswith(LINKS) for link in pairs.values())


def test_a_tool_that_cannot_be_executed(tmp_path, monkeypatch):
    """One line reports it, and all other checks still run."""
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look("nvidia-smi", "gpus", "cores")
    assert found["nvidia-smi"][0] == "fail" and "OSError" in found["nvidia-smi"][1]
    assert found["gpus"][0] == "skip" and found["cores"][0] == "ok"


@given(st.lists(st.sampled_from(["0", "1", "7", "-1", "", " 2", "GPU-4", "x"])))
def test_reads_a_mask_as_the_topology_module_does(entries):
    """Two independent readers of CUDA_VISIBLE_DEVICES agree."""
    uuids = [f"GPU-{i}" for i in range(5)]
    gpus = [{"index": str(i), "uuid": uuid} for i, uuid in enumerate(uuids)]
    mask = ",".join(entries)
    if len({entry.startswith("GPU-") for entry in entries}) < 2:  # not mixed
        ours = [int(gpu["index"]) for gpu in nvidia_smi.chosen(mask, gpus)]
        assert ours == visible_devices(mask, 5, uuids)
