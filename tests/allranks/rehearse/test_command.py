"""The command rehearses real scripts: one process, torchrun, mp.spawn, two nodes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from allranks import vgpu
from allranks.doctor import nvidia_smi as doctor
from allranks.rehearse import __main__ as command
from allranks.rehearse import launch, nvidia_smi, records
from allranks.rehearse.launch import CommandError, _place, reach, rewrite
from tests.allranks.rehearse.running import (
    CHILD,
    REHEARSE,
    SCRIPTS,
    forked,
    sentences,
    torchrun,
)


def line_of(script, text):
    """Return "script:line" of a text in it."""
    lines = (SCRIPTS / script).read_text("utf8").splitlines()
    return f"{script}:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def test_a_healthy_ddp_script_has_no_finding(rehearse, tmp_path):
    """The record has who, the memory's holders, the traffic of a step, the samples.

    torchrun leaves no folder but the one that it is given. Where its logs go by
    default, the test of signals shows.
    """
    paths = [f"--json={tmp_path / 'r.json'}", f"--html={tmp_path / 'r.html'}"]
    folder = tmp_path / "temporary"
    folder.mkdir()
    program, *words = torchrun("ddp.py")
    command = program, f"--log-dir={tmp_path}/logs", *words
    code, out, err = rehearse("--strict", *paths, *command, TMPDIR=str(folder))
    assert code == 0, out + err
    assert left_in(folder) == [] and len(list(tmp_path.glob("logs/*"))) == 1
    assert "Findings: none" in out
    told = json.loads((tmp_path / "r.json").read_text("utf8"))
    assert told["findings"] == [] and told["exit"] == 0
    for rank, one in enumerate(told["processes"]):
        assert (one["rank"], one["num_steps"], one["ended"]) == (rank, 8, True)
        (gpu,) = one["gpus"]
        assert (
            gpu["index"] == rank and sum(gpu["holders"].values()) == gpu["peak_bytes"]
        )
        # Where in a step so small a model peaks depends on when gloo frees a block.
        assert gpu["holders"]["parameters"] == 1024
        assert gpu["holders"]["optimizer"] == 2048  # two moments for each of two
        backward = [c for c in one["collectives"] if c["in_backward"]]
        assert [(c["op"], c["num_bytes"], c["times"]) for c in backward] == [
            ("all_reduce", 36, 8)
        ]
        assert backward[0]["line"].endswith(line_of("ddp.py", "loss.backward()"))
        assert [len(e["indices"]) for e in one["epochs"]] == [32, 32]
        (bucket,) = one["ddp"][0]["buckets"]
        assert (bucket["num_bytes"], bucket["num_parameters"]) == (36, 2)
        assert {bucket["first"], bucket["last"]} == {"bias", "weight"}
        # The guard looks at the optimizer's step, and nothing of it is counted.
        assert one["guard"] == vars(records.GuardNotes(["DDP"]))
        here = line_of("ddp.py", "optimizer.step()")
        sent = [*one["collectives"], *one["copies"]]
        assert sent and not any(each["line"].endswith(here) for each in sent)
        assert gpu["growth"]["batch"] == 8
    assert (
        "DDP, all_reduce  36 B                     36 B            36 B, the same"
        in out
    )
    assert "In a step, 288 B go from the host to the GPU of each rank." in out
    assert "The guard compared ranks 0–1" in out
    assert "<h2>Who ran where</h2>" in (tmp_path / "r.html").read_text("utf8")


def named(out, script, kinds):
    """Check that a report has findings of these kinds, at these lines, and no more."""
    for kind, text in kinds.items():
        assert f"[{kind}] {line_of(script, text) + ':' if text else ''}" in out, kind
    assert f"Findings: {len(kinds)}" in out, out


def test_mistakes_are_named_with_their_lines_and_strict_fails(rehearse):
    """Eight mistakes in one script: each is found at its line, and no other."""
    broken = "no-set-device", "no-set-epoch", "item", "back", "no-with", "dropout"
    job = " ".join(["ddp.py", *broken, "edit", "four-shares"])
    code, out, err = rehearse("--strict", *forked(job))
    assert code == 3, out + err
    kinds = {
        "stray-memory": 'torch.zeros(8, device="cuda")',
        "not-entered": "    torch.cuda.device(local_rank)",
        "no-set-epoch": "for x, y in loader",
        "samples-never": "for x, y in loader",
        "waits-every-step": "loss.item()",
        "back-and-forth": "torch.from_numpy",
        "guard": "optimizer.step()",
        "same-random-numbers": "optimizer.step()",
    }
    out = sentences(out)
    assert f"and so at {line_of('ddp.py', 'out.detach().cpu()')}" in out
    assert f"from a GPU before, at {line_of('ddp.py', 'out.detach().cpu()')}" in out
    assert "step 4: the parameter module.1.weight is not the same on all ranks" in out
    named(out, "ddp.py", kinds)


def test_ranks_that_do_not_talk_are_found_without_the_guard(rehearse):
    """Five more mistakes; there is no message between the ranks that could tell."""
    job = "ddp.py module no-sampler evaluate"
    code, out, err = rehearse("--gpus=3", "--no-guard", *forked(job))
    assert code == 0, out + err
    assert "The guard was left out" in out
    kinds = {
        "idle-gpu": "",
        "gradients-not-averaged": "",
        "replicas-differ": "",
        "samples-twice": "for x, y in loader",
        "padded-evaluation": "for (x,) in",
    }
    named(out, "ddp.py", kinds)


LAWS = {  # the findings of laws.py, with their lines, by what it is told to do
    "laws.py sync accumulate buffers save keys": {
        "sync-every-pass": ".backward()",
        "constant-buffers": ".backward()",
        "one-file": "torch.save({",
        "wrapped-keys": "torch.save((net",
    },
    "laws.py gloo": {"gradients-over-gloo": ".backward()"},
    "laws.py by-hand": {"replicas-differ": "optimizer.step()"},
}


def test_what_tables_only_showed_is_found_and_its_cure_is_silent(
    rehearse, tmp_path, monkeypatch
):
    """Each mistake has a twin in the same script that is right; for gloo it is ddp.py.

    Both rehearsals are of several jobs.
    """
    monkeypatch.chdir(tmp_path)
    code, out, err = rehearse("--strict", *forked(*LAWS))
    assert code == 3, out + err
    named(out, "laws.py", {k: line for job in LAWS.values() for k, line in job.items()})
    first, _, last = LAWS
    code, out, more = rehearse("--strict", *forked(f"{first} right", f"{last} right"))
    assert code == 0 and "Findings: none" in out, out + more
    assert "UserWarning: Casting complex" not in err + more


def test_ranks_that_fail_are_no_success_though_the_script_ends_with_0(rehearse):
    """Their parent does not look at them; the equal tracebacks are one."""
    code, out, err = rehearse("--strict", str(SCRIPTS / "parent.py"))
    assert code == 3 and out.startswith("Rehearsal: exit code 0 after"), out + err
    assert "; the script failed\n" in out
    assert err.count("Traceback") == 1 and "rehearse/child.py" not in err


def test_a_rank_that_nobody_starts_is_named(rehearse):
    """The other one waits for it, and not for ever."""
    code, out, err = rehearse("--watch=1", str(SCRIPTS / "lonely.py"))
    assert code == 1, out + err
    named(out, "lonely.py", {"ranks-missing": "dist.init_process_group"})
    assert "nobody started rank 1, for which rank 0 waited" in sentences(out)


def test_ranks_may_talk_over_gloo(rehearse):
    """What they send there is not counted, so nothing is said against it."""
    code, out, err = rehearse(*forked("gloo.py"))
    assert code == 0, out + err
    assert "[gradients-not-averaged]" not in out and "[replicas-differ]" not in out


def gone(text):
    """Tell whether all processes that a script named in its output have ended."""
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", text)]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{p}").exists() for p in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return bool(pids)


def test_a_hang_says_who_waited_where_and_for_whom(rehearse):
    """Rank 0 waits in a broadcast that rank 1 leaves out; nobody is left behind.

    With --full, torchrun's own words are there as well, and all tables.
    """
    code, out, err = rehearse("--watch=2", "--full", *torchrun("hang.py"))
    assert code == 1, out + err
    assert "ChildFailedError" in err and "Memory at the peak" in out
    out = sentences(out)
    at, stood = line_of("hang.py", "dist.broadcast"), line_of("hang.py", "sleep(60)")
    assert (
        f"rank 0 waited at {at} in broadcast, call 2 of ranks 0–1, for rank 1; "
        f"rank 1 stood at {stood}"
    ) in out
    assert "Watchdog caught collective operation timeout" in out
    assert gone(out)


def test_two_ranks_on_one_gpu_are_named(rehearse):
    """NCCL refuses them, and the finding says which GPU, and at which line.

    All fits on a screen: one traceback for both ranks, and no word of torchrun's.
    """
    code, out, err = rehearse(*torchrun("hang.py", "one-gpu"))
    assert code == 1, out + err
    assert len((out + err).splitlines()) <= 60, out + err
    assert "ChildFailedError" not in err and "allranks/backends" not in err
    assert "Duplicate GPU detected" in out
    place = line_of("hang.py", "torch.ones")
    assert f"[shared-gpu] {place}: ranks 0–1 work on one GPU, cuda:0" in out
    assert gone(out)


def test_a_stub_is_imported_and_a_tensor_on_the_wrong_device_is_traced(rehearse):
    """The finding is where the mask was made, and the failure where it was used."""
    stub = f"--stub=flash_attn={SCRIPTS / 'stub.py'}"
    code, out, err = rehearse("--gpus=1", stub, str(SCRIPTS / "meet.py"))
    assert code == 1 and "stub\n" in out, out + err
    out = sentences(out)
    used, where = line_of("meet.py", "return flash_attn"), "self.mask = torch"
    assert f"the script: {used}: RuntimeError: Expected all tensors" in out
    assert f"self.mask is on cpu, and meets a tensor on another device at {used}" in out
    named(out, "meet.py", {"wrong-device": where})


def test_a_spawned_rank_that_fails_is_named_with_its_line(rehearse):
    """Children of mp.spawn have GPUs and records; nvidia-smi answers in all."""
    code, out, err = rehearse(str(SCRIPTS / "spawn.py"), "fail")
    assert code == 1, out + err
    assert "GPU 1: Virtual GPU" in out and "rank 0: 2" in out
    place = line_of("spawn.py", "raise ValueError")
    assert f"rank 1: {place}: ValueError: this rank fails" in out
    assert "ProcessRaisedException" not in out


@pytest.mark.parametrize(
    ("how", "code", "said"), [("7", 7, ""), ("text", 1, "it ends because of this")]
)
def test_a_script_ends_as_under_python(rehearse, how, code, said):
    """Its threads are joined, its exit functions run, and its exit code is ours."""
    found, out, err = rehearse("--gpus=1", str(SCRIPTS / "ends.py"), how)
    assert found == code, out + err
    assert out.startswith("last line\nthread\nexit function\nRehearsal: exit code")
    assert f"the script: ended its process with exit code {code}\n" in out
    assert "idle-gpu" not in out
    assert said in err


LAUNCH = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""


def test_a_script_has_the_surroundings_that_python_gives_it(
    rehearse, tmp_path, monkeypatch
):
    """It may move, start scripts, reset counters, leave at once, and leave a mess.

    A launcher starts it, and the scripts that it starts are rehearsed; the process that
    it forgets is ended.
    """
    Path(tmp_path, "stub.py").write_text("told = __name__")
    stubs = "--stub=apex=stub.py", "--stub=apex.parallel=stub.py"
    Path(tmp_path, "link.py").symlink_to(SCRIPTS / "leaves.py")
    launcher = Path(tmp_path, "launcher")
    launcher.write_text(f"#!{sys.executable}\n{LAUNCH}")
    launcher.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    code, out, err = rehearse(
        "--full", "--gpus=1", *stubs, "TOLD=a b", str(launcher), "link.py"
    )
    assert code == 3, out + err
    assert "apex, apex.parallel, 1 GPU, of a script that it started" in out
    assert "the script: ended its process with exit code 3" in out
    assert ": Own: of a process of its own class" in out
    assert re.search(r"cuda:0 +- +4.19 MB", out), out
    assert gone(out)


def test_a_timeout_ends_all(rehearse):
    """The code is that of the program timeout, and a process deaf to SIGTERM ends."""
    words = "--timeout=12", "--gpus=1", str(SCRIPTS / "wait.py")
    code, out, err = rehearse(*words)
    assert code == 124, out + err
    assert "Rehearsal: ended after --timeout 12 s" in out
    assert gone(out)


@pytest.mark.parametrize(
    ("words", "number", "code", "told"),
    [
        (torchrun("wait.py", ranks=1), signal.SIGINT, 130, "stopped by Ctrl-C"),
        ([str(SCRIPTS / "wait.py")], signal.SIGTERM, 143, "stopped by SIGTERM"),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_ends_all_and_prints_the_report(words, number, code, told, tmp_path):
    """No process or folder is left, and the report says what was done until then."""
    command = [*REHEARSE, "--gpus=1", *words]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    said = job.stdout.readline()
    time.sleep(1.5)  # the record is written twice a second
    job.send_signal(number)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == code
    assert told in out and "Memory at the peak" in out
    assert f"stopped at {line_of('wait.py', 'sleep(60)')}" in out
    assert gone(said) and left_in(tmp_path) == []


def left_in(folder):
    """Return what stays in a folder for temporary files, without torch's own cache."""
    return [path for path in folder.iterdir() if "torchinductor" not in path.name]


def test_who_is_impatient_leaves_nothing_behind_either(monkeypatch):
    """A second Ctrl-C, while the processes are being ended."""
    cleared = []

    def interrupted(jobs):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "stop", interrupted)
    monkeypatch.setattr(launch, "_clear", lambda stage, jobs: cleared.append(jobs))
    stage = records.Stage(folder="no such rehearsal", gpus=1)
    command = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(launch, "rewrite", lambda *about: command)
    code, _ = launch.run(stage, ["train.py"])
    assert code == 0 and len(cleared[0]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the command"),
        (["--gpus=0", "x.py"], "--gpus 0: choose 1 to 64"),
        (["--nodes=0", "x.py"], "--nodes 0"),
        (["--timeout=-1", "x.py"], "--timeout -1"),
        (["--memory=much", "x.py"], "much"),
        (["--gpu=h1000", "x.py"], "no card 'h1000'"),
        (["--stub=apex", "x.py"], "NAME=FILE"),
        (["--json=/no/such/r.json", "x.py"], "--json /no/such/r.json: name a file"),
        (["--html=.", "x.py"], "--html .: name a file"),
        (["--"], "name the command"),
        (["--allow=all", "x.py"], "the kinds are shared-gpu"),
    ],
)
def test_a_wrong_option_is_refused_in_a_sentence(words, said, capsys):
    """The sentence names the value."""
    with pytest.raises(SystemExit) as ended:
        command.options(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_quiet_prints_no_report(monkeypatch, capsys):
    """Whoever wants the file for programs may leave out the one for people."""
    monkeypatch.setattr(launch, "run", lambda *about: (0, "exit code 0 after 1 s"))
    for words, start in ([], "Rehearsal: exit code 0"), (["--quiet"], ""):
        assert command.main([*words, "train.py"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(start) and bool(out) == bool(start)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "train.sh"], "bash: give a script, or the command with python"),
        ([], "no command"),
        (["python"], "without a script"),
        (["nofile.py"], "nofile.py: there is no such script"),
        (["torchrun", "--nproc-per-node", "2", "nofile.py"], "nofile.py: there is no"),
        (["python", "-c", "1"], "-c cannot be rehearsed"),
        (["torchrun", "--no-python", "x"], "--no-python"),
        (["torchrun", "--nproc-per-node"], "torchrun: "),
        (["torchrun", "--nnodes=2", str(SCRIPTS / "ddp.py")], "add --nodes 2"),
        (["python_train.py", "--lr", "1"], "python_train.py: there is no such script"),
    ],
)
def test_a_command_that_cannot_be_rehearsed_is_refused(words, said):
    """Nothing is started."""
    with pytest.raises(CommandError, match=said):
        rewrite(words)


def test_flags_of_python_stay_and_other_programs_are_left_alone():
    """Without assert statements, a script is another one."""
    script = str(SCRIPTS / "ddp.py")
    made = rewrite(["python", "-O", script]), reach([sys.executable, "-O", script])
    for words in made:
        assert words[-4:] == ["-O", *CHILD, script]
    for words in ["python9.9", "train.py"], [sys.executable, "-I", "train.py"]:
        assert reach(words) == words


def test_two_dashes_end_torchruns_own_flags():
    """A script's --logs is no abbreviation of torchrun's --logs-specs then."""
    script = str(SCRIPTS / "ddp.py")
    made = rewrite(["torchrun", "--nproc-per-node=2", "--", script, "--logs", "x"])
    child = ["--", "allranks.rehearse.child", script, "--logs", "x"]
    assert made[-6:] == ["--module", *child] and made.count("--") == 1
    agent = ["-m", "allranks.rehearse.agent", "torch.distributed.run"]
    assert made[2:5] == agent
    made = rewrite(["torchrun", "--nproc-per-node=2", script, "--", script])
    assert made[-4:] == ["--", "allranks.rehearse.child", script, script]


def test_the_readers_modules_come_before_installed_ones(tmp_path):
    """A package of the reader's may be called as one that lies beside ours."""
    Path(tmp_path, "allranks_other.py").write_text("")  # stands for any name
    env = {"PYTHONPATH": str(tmp_path)}
    first, *_, last = launch._python_path(env).split(os.pathsep)
    assert first == str(tmp_path) and Path(last, "allranks", "rehearse").is_dir()


def test_nodes_replace_what_the_command_says_of_places():
    """A job's own rendezvous is a cluster's; here the nodes meet on this machine."""
    words = ["torchrun", "--nnodes", "8", "--rdzv-endpoint=head:29500", "--rdzv_id=1"]
    words += ["--node_rank=7", "--local-addr", "10.0.0.8"]
    made = rewrite([*words, "--nproc-per-node=4", "-m", "train"], _place(2, 4321))
    assert "8" not in made and not any(
        "head" in word or "10.0" in word for word in made
    )
    assert "--nnodes=2" in made and "--rdzv-endpoint=127.0.0.1:4321" in made
    assert not any(word.startswith(("--node_rank", "--node-rank")) for word in made)
    assert made[-5:] == ["--module", "--", "allranks.rehearse.child", "-m", "train"]


SLOW_TO_LEAVE = """
import sys
if "torch.distributed.run" in sys.orig_argv:
    import os, time
    from torch.distributed.elastic.utils import store as barriers

    own = barriers._barrier_nonblocking

    def late(store, *args, **kwargs):
        store.set(f"pid {store.add('come', 1)}", str(os.getpid()))
        second = max(int(store.get(f"pid {node}")) for node in (1, 2))
        key = own(store, *args, **kwargs)
        if os.getpid() == second:
            print("slow to leave", file=sys.stderr)
            time.sleep(1)
        return key

    barriers._barrier_nonblocking = late
"""


def test_two_nodes_have_gpus_of_their_own_and_end_in_any_order(rehearse, tmp_path):
    """Both ranks are local rank 0; what loaders with workers read is known, too.

    One torchrun is slow to read that all is done, when the other has ended.
    """
    Path(tmp_path, "sitecustomize.py").write_text(SLOW_TO_LEAVE)
    words = "--nodes=2", "--gpus=1", *torchrun("ddp.py", "workers", ranks=1), ""
    code, out, err = rehearse(*words, PYTHONPATH=str(tmp_path))
    assert code == 0, out + err
    assert re.search(r"ddp.py:\d+ +2 +32 +64 +ranks 0–1", out), out  # of the samples
    assert "node0 cuda:0" in out and "node1 cuda:0" in out
    assert "Findings: none" in out
    assert "The guard compared ranks 0–1" in out and "It ended early" not in out
    assert "slow to leave" in err
    assert "frame #" not in err and "Error" not in err, err


def test_nvidia_smi_answers_queries(tmp_path):
    """A card has its name and memory; what is not known is refused."""
    stage = records.Stage(folder=str(tmp_path), gpus=2, card="h100-80")
    ask = ["--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    assert nvidia_smi.answer(ask, stage) == (
        "0, NVIDIA H100 80GB HBM3, 76293\n1, NVIDIA H100 80GB HBM3, 76293\n",
        0,
    )
    second = nvidia_smi.answer(ask, stage)[0].partition("\n")[2]
    for words in ["-i", "1"], ["--id=1"]:
        assert nvidia_smi.answer([*ask, *words], stage) == (second, 0)
    assert nvidia_smi.answer(["-i", "2", "-L"], stage)[1] == 6
    assert nvidia_smi.answer(["topo", "-m"], stage)[1] == 1
    said, code = nvidia_smi.answer(["--query-gpu=index,none"], stage)
    assert (said, code) == ('Field "none" is not a valid field to query.\n', 2)


def test_nvidia_smi_says_what_is_in_use_and_the_doctor_is_content(
    tmp_path, monkeypatch
):
    """It knows a running process by its record; the doctor asks it as any program."""
    stage = records.Stage(folder=str(tmp_path), gpus=2, card="a100-40")
    gpu = records.Gpu(1, 1, reserved_bytes=3 * 2**20)
    here = socket.gethostname()
    for pid, host, ended in (77, here, False), (78, here, True), (79, "node1", False):
        record = records.Record(host=host, pid=pid, ended=ended, gpus=[gpu])
        records.write(record, tmp_path)
    nvidia_smi.install(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for variable, value in stage.environment().items():
        monkeypatch.setenv(variable, value)
    gpus, problem = doctor.survey.__wrapped__()
    assert (
        problem is None
        and [gpu["name"] for gpu in gpus] == ["NVIDIA A100-SXM4-40GB"] * 2
    )
    assert [gpu["memory.used"] for gpu in gpus] == ["0", "3"]
    assert [gpu["processes"] for gpu in gpus] == [[], ["77"]]
    with vgpu.plugged_in(2, kind="cuda", card="a100-40"):
        told = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(2)]
    assert [gpu["uuid"] for gpu in gpus] == told
    table, _ = nvidia_smi.answer([], stage)
    assert "CUDA Version: 12.8" in table and "3.0MiB / 38146MiB" in table


ALONE = """
import sys
import torch
gib = torch.cuda.get_device_properties(0).total_memory >> 30
print(f"{sys.argv[1:]} of {torch.cuda.device_count()} with {gib}\\n", end="")
torch.cuda.set_device(int(sys.argv[1][-1]))
net = torch.nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_the_old_launcher_passes_the_local_rank_and_counts_the_gpus(rehearse, tmp_path):
    """By "gpu" it means those that are visible; one without a name has 80 GiB.

    The script joins no group, so each rank trains for itself.
    """
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    launcher = "python", "-m", "torch.distributed.launch", "--nproc-per-node=gpu"
    words = "--gpus=4", *launcher, str(script), "--lr=1"
    code, out, err = rehearse(*words, CUDA_VISIBLE_DEVICES="3,1")
    assert code == 0, err
    for rank in range(2):
        assert f"['--local-rank={rank}', '--lr=1'] of 2 with 80\n" in out
    named(out, "alone.py", {"gradients-not-averaged": "", "idle-gpu": ""})
