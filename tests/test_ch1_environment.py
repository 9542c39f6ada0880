"""Chapter 1's script says whether ranks can train, and its page what to install."""

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils import collect_env

from allranks.base.paths import ROOT
from allranks.doctor.wheels import driver_runs
from allranks.openings import ch1_environment as picture
from allranks.openings import opening
from scripts import ch1_environment as lesson

MACHINES = ROOT / "tests/allranks/doctor/machines"
PAGE = ROOT / "book/ch1_environment.md"


@pytest.fixture
def rank(monkeypatch, capsys):
    """Return a function that returns what main prints as a rank of 4.

    ``rank(2, 0)`` is rank 2, which is local rank 0 of the 2 on its machine.
    """

    def become(rank, local_rank):
        place = {"RANK": rank, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": 2}
        place |= {"WORLD_SIZE": 4, "MASTER_ADDR": "node0", "MASTER_PORT": 29500}
        for name, value in (place | {"TORCHELASTIC_RUN_ID": "job"}).items():
            monkeypatch.setenv(name, str(value))
        joined = (rank, 4, torch.device("cpu"))
        group = contextlib.nullcontext(joined)
        monkeypatch.setattr(lesson.job, "launched", lambda: None)
        monkeypatch.setattr(lesson.job, "ranks", lambda args: group)
        monkeypatch.setattr(dist, "all_reduce", lambda x: x.add_(9 - rank))
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: 4)
        lesson.main(lesson.parse_args([]))
        return capsys.readouterr().out.splitlines()

    return become


def test_the_first_rank_of_each_machine_describes_it(rank):
    """One rank describes each machine, but every rank proves that it can add."""
    starts = "PyTorch", "Ranks", "Cores:", "/dev/shm", "The name", "Processes"
    *facts, proof = rank(2, 0)
    for fact, start in zip(facts, starts, strict=True):
        assert fact.startswith(start) or fact.startswith("There is no /dev/shm")
    assert facts[-1].endswith(" on this machine: 2.")
    assert proof == "[rank 2/4] I brought 3, and all_reduce made it 10: right."
    assert [line[:23] for line in rank(3, 1)] == ["[rank 3/4] I brought 4,"]


@pytest.mark.parametrize("others", [[2], [2, 3, 4]], ids=["2 ranks", "4 ranks"])
def test_a_wrong_sum_is_refused(others, monkeypatch):
    """Ranks that added nothing, or only a part, must not say that they can train."""
    cpu, world_size = torch.device("cpu"), 1 + len(others)
    monkeypatch.setattr(dist, "all_reduce", lambda x: x.add_(sum(others)))
    said = f"I brought 1, and all_reduce made it {1 + sum(others)}: right."
    assert lesson.add_up(0, world_size, cpu) == said
    monkeypatch.setattr(dist, "all_reduce", lambda x: x[1:].add_(sum(others)))
    refused = f"^all_reduce gave 1 to {1 + sum(others)}, not {1 + sum(others)}: do not"
    with pytest.raises(SystemExit, match=refused):
        lesson.add_up(0, world_size, cpu)


@pytest.mark.parametrize(
    ("gpu", "cuda", "machine", "said"),
    [
        ("cuda", "13.0", "h100_node", "8 x cuda, joined by nccl."),
        ("mps", None, "", "the CPU, joined by gloo: there is no GPU for them."),
        (None, None, "", "the CPU, joined by gloo: there is no GPU for them."),
        (None, None, "no_driver", "joined by gloo: there is no GPU for them."),
        (None, None, "h100_node", "but this PyTorch is built without CUDA."),
        (None, "12.6", "titan_x", "4 GPUs have driver 390.48, but CUDA 12.6 does not"),
    ],
)
def test_a_gpu_counts_only_if_torch_can_use_it(gpu, cuda, machine, said, monkeypatch):
    """If it can't, the sentence says why: no driver, an old one, or no CUDA build."""
    device = gpu and torch.device(gpu)
    fake = {"current_accelerator": lambda check_available: device}
    fake = SimpleNamespace(**fake, device_count=lambda: 8)
    monkeypatch.setattr(torch, "accelerator", fake)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("SMI_MACHINE", machine)
    folder = f"{MACHINES}{os.pathsep}" if machine else ""
    monkeypatch.setenv("PATH", f"{folder}{os.environ['PATH']}")
    assert said in lesson.describe_devices()


@pytest.mark.parametrize(
    ("cuda", "hip", "built"),
    [(None, None, "the CPU"), ("13.0", None, "CUDA 13.0"), (None, "7.2", "ROCm 7.2")],
)
def test_the_build_is_named(cuda, hip, built, monkeypatch):
    """The sentence names the build, as a wheel for one device can't use another."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    start = f"PyTorch {torch.__version__} is built for {built}, with gloo"
    assert lesson.describe_torch().startswith(start)


def test_cores_are_shared_by_the_ranks(monkeypatch):
    """Only cores in the process's affinity count, where the system has affinities."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), False)
    assert "6 of 16 are ours, 1.5 per rank" in lesson.describe_cores(4)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert "16 of 16 are ours, 4 per rank" in lesson.describe_cores(4)


@pytest.mark.parametrize("free, enough", [(2**26, False), (2**30, True)])
def test_little_shared_memory_is_told_with_its_cure(free, enough, monkeypatch):
    """Docker's 64 MiB are reported with the flag that cures them; a GiB is enough."""
    disk = SimpleNamespace(free=free, total=free)
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    assert ("--ipc=host" in lesson.describe_memory()) != enough
    monkeypatch.setattr(os.path, "isdir", lambda path: False)
    assert "not Linux" in lesson.describe_memory()


@pytest.mark.parametrize(
    ("address", "who"),
    [
        ("127.0.1.1", "resolves to 127.0.1.1, where only ranks on this machine"),
        ("10.127.0.1", "resolves to 10.127.0.1, where ranks of many machines"),
        (None, "has no address, so gloo takes 127.0.0.1, where only ranks"),
    ],
)
def test_a_name_says_how_far_it_reaches(address, who, monkeypatch):
    """A name that resolves to the loopback works on one machine, but not on two."""

    def resolve(name):
        if address is None:
            raise socket.gaierror(-2, "Name or service not known")
        return address

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert who in lesson.describe_name()


def test_what_is_left_over_is_told_from_a_launcher(monkeypatch):
    """No variables, forgotten exports and torchrun's variables are told apart."""
    for name in "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT":
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert lesson.describe_launcher().endswith("it is alone.")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert lesson.describe_launcher().endswith(": unset RANK WORLD_SIZE.")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert lesson.describe_launcher().endswith(": 8.")


def test_wrong_use_is_answered_in_a_sentence(monkeypatch):
    """An unknown flag, or half of a launcher's variables, gets one sentence."""
    with pytest.raises(SystemExit, match=r"^unrecognized arguments: --list$"):
        lesson.main(lesson.parse_args(["--list"]))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match=r"^RANK is '', but LOCAL_RANK is set"):
        lesson.main(lesson.parse_args([]))


def test_what_the_page_says_of_collect_env():
    """Torch's own report has, and lacks, the fields that the page names."""
    has = " ".join(collect_env.SystemEnv._fields)
    for field in "torch_version", "nvidia_driver", "gpu_models", "gcc", "cudnn", "cpu":
        assert field in has
    for field in "shm", "topo", "memory", "process", "interface", "port", "ecc":
        assert field not in has
    slices = "GPU 0: A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0: (UUID: MIG-2)"
    gpus = collect_env.get_gpu_info(lambda command: (0, slices, ""))
    lacks = re.search(r"^\| topology.* no \|$", PAGE.read_text("utf8"), re.M)
    assert "MIG 1g.5gb" in gpus and "MIG" not in lacks[0]


FULL = """
import torch
from torch.utils.data import DataLoader

fork = {"num_workers": 2, "multiprocessing_context": "fork"}
for _ in DataLoader(torch.ones(64, 2**20), 4, **fork):
    pass
"""


def test_a_worker_without_room_in_shm_raises_what_the_page_says():
    """In 8 MB of /dev/shm torch 2.13 names the cause; no worker dies of a bus error."""
    own = "unshare", "--user", "--map-root-user", "--mount"
    small = "mount -t tmpfs -o size=8m none /dev/shm"
    if subprocess.run([*own, "sh", "-c", small], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a /dev/shm of their own")
    command = shlex.join([sys.executable, "-c", FULL])
    end = subprocess.run(
        [*own, "sh", "-c", f"{small} && {command}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert end.returncode == 1
    assert "RuntimeError: unable to allocate shared memory(shm)" in end.stderr
    assert "us error" not in end.stderr
    assert "`unable to allocate shared memory(shm)`" in PAGE.read_text("utf8")


def installs():
    """Return every install command of the page, from console blocks and its table."""
    text = PAGE.read_text("utf8")
    return re.findall(r"(?:^\$ |`)((?:uv )?pip install torch\b[^`#\n]*)", text, re.M)


def test_install_commands_name_the_release_that_the_book_runs():
    """They have requirements.txt's pin, and an index or backend of this release."""
    pins = (ROOT / "requirements.txt").read_text("utf8")
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
    """Pip's own parser accepts each line, so no flag is misspelt."""
    from pip._internal.commands import create_command

    lines = [c for c in installs() if not c.startswith("uv")]
    assert len(lines) >= 4
    for line in lines:
        options, wanted = create_command("install").parse_args(shlex.split(line)[2:])
        assert [str(word) for word in wanted] == ["torch==2.13.0"]
        assert options.index_url.startswith("https://")


def test_the_page_and_the_errata_say_the_same_of_plain_pip():
    """They agree on the wheel's CUDA, and on the driver that NVIDIA requires for it."""
    text = " ".join(PAGE.read_text("utf8").split())
    row = (ROOT / "errata/c5_cuda_by_hand.py").read_text("utf8")
    toolkit = re.search(r"cuda-toolkit\S*==([\d.]+)", row)[1]
    assert f"`cuda-toolkit=={toolkit}`" in text
    brings, needs = re.search(
        r"wheel brings CUDA ([\d.]+) \| (\d+) or newer", text
    ).groups()
    assert toolkit.startswith(brings)
    assert driver_runs(needs, brings) and not driver_runs("579.9", brings)
    older = re.search(r"\| `cu126` \|[^|]+\| ([\d.]+) or newer", text)[1]
    assert driver_runs(older, "12.6")
    assert not driver_runs("525.60.12", "12.6")


def test_the_opening_explains_each_number_on_its_layers_once():
    """Five things must match, and five are marked."""
    texts = re.findall(r"<text[^>]*>([^<]*)", opening("ch1_environment"))
    expected = [f"{i + 1}" for i in range(len(picture.MATCH))]
    assert sorted(text for text in texts if text.isdecimal()) == sorted(expected * 2)
