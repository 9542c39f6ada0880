"""Wrong use is answered with one sentence, and nothing is left behind.

What answers is scripts/job.py and scripts/checkpoint.py, which are tried with each
fault. Each script is tried with its own bad flags.
"""

import job

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from allranks import Ranks, launch
from scripts import ch5_ddp  # which puts their folder on the path

import checkpoint

SCRIPTS = Path(ch5_ddp.__file__).parent
NAMES = sorted(path.stem for path in SCRIPTS.glob("ch[0-9]*.py"))
SOURCES = {name: (SCRIPTS / f"{name}.py").read_text("utf8") for name in NAMES}
WITH_CHECKPOINT = [name for name in NAMES if "args.checkpoint" in SOURCES[name]]
LAUNCHED = {  # what torchrun sets for a job of one rank
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
}


def refusal(function, *args) -> str:
    """Return the one-line message with which a call exits."""
    with pytest.raises(SystemExit) as end:
        function(*args)
    assert isinstance(end.value.code, str) and len(end.value.code.splitlines()) == 1
    return end.value.code


class TestFlags:
    """The parser refuses bad values before anything starts, and says what would do."""

    @pytest.mark.parametrize("name", NAMES)
    def test_numbers(self, name, tmp_path, monkeypatch):
        """Each numeric flag of each script refuses values below and above its range."""
        parse = importlib.import_module(f"scripts.{name}").parse_args
        monkeypatch.chdir(tmp_path)  # where no checkpoint lies
        for flag, default in vars(parse([])).items():
            flag = "--" + flag.replace("_", "-")
            wrong = {
                int: ["-1", "1" + "0" * 20, str(2**64)],
                float: ["0", "inf", "nan", "1e-300", "1e300"],
            }
            for value in wrong.get(type(default), []):
                said = refusal(parse, [f"{flag}={value}"])
                assert said.startswith(f"{flag} ") and "must be" in said
            if type(default) in wrong:
                said = refusal(parse, [f"{flag}=abc"])
                assert said == (
                    f"argument {flag}: invalid {type(default).__name__} value: 'abc'"
                )
        assert refusal(parse, ["--color", "red"]) == (
            "unrecognized arguments: --color red"
        )

    @pytest.mark.parametrize(
        "path",
        ["", "/dev/null", "/dev/full", "{}", "{}/no/x.pt", "{}/x/", "/proc/x.pt"],
    )
    def test_a_checkpoint_that_could_not_be_written(self, path, tmp_path):
        """It is refused, and the check leaves no file behind."""
        path = path.format(tmp_path)
        said = refusal(checkpoint.probe, path)
        assert said.startswith(f"--checkpoint {path or repr(path)}: ")
        assert said.endswith(": name a file that can be written")
        assert os.listdir(tmp_path) == []

    def test_a_fifo_and_a_name_that_is_too_long(self, tmp_path):
        """Neither is opened, because opening a fifo would wait for a reader."""
        os.mkfifo(tmp_path / "fifo")
        for name in "fifo", "x" * 256:
            refusal(checkpoint.probe, f"{tmp_path / name}")
        assert os.listdir(tmp_path) == ["fifo"]

    def test_a_good_one_is_not_touched(self, tmp_path):
        """The check leaves a good file as it is, and no empty or .new file."""
        (tmp_path / "x.pt").write_bytes(b"state")
        checkpoint.probe(f"{tmp_path / 'x.pt'}")
        checkpoint.probe(f"{tmp_path / 'y.pt'}")
        assert os.listdir(tmp_path) == ["x.pt"]

    @pytest.mark.parametrize("name", WITH_CHECKPOINT)
    def test_each_script_asks_before_it_trains(self, name, tmp_path):
        """A script that writes a checkpoint looks at the path with its other flags."""
        parse = importlib.import_module(f"scripts.{name}").parse_args
        said = refusal(parse, [f"--checkpoint={tmp_path}/no/x.pt"])
        assert said.endswith(
            ": No such file or directory: name a file that can be written"
        )


class TestEnvironment:
    """Having half of torchrun's variables is worse than having none."""

    @pytest.mark.parametrize(
        "change, why",
        [
            ({"RANK": None}, "RANK is '', but LOCAL_RANK is set: unset it and start"),
            ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', but LOCAL_RANK is set"),
            ({"LOCAL_RANK": "-1"}, "LOCAL_RANK is '-1', but"),
            ({"MASTER_ADDR": None}, "MASTER_ADDR is '', but"),
            ({"MASTER_PORT": ""}, "MASTER_PORT is '', but"),
            ({"RANK": "1"}, "RANK 1: WORLD_SIZE is 1, so it ends at 0"),
            ({"LOCAL_RANK": "2"}, "LOCAL_RANK 2: LOCAL_WORLD_SIZE is 1, so"),
            *[
                ({"GROUP_TIMEOUT_S": text}, f"GROUP_TIMEOUT_S '{text}': must be sec")
                for text in ("abc", "0", "nan", "-1", "inf", "1e300", "")
            ],
        ],
        ids=str,
    )
    def test_is_refused(self, change, why, monkeypatch):
        """It is refused before the rank joins the group, where it would wait."""
        for name, value in {**LAUNCHED, **change}.items():
            monkeypatch.setenv(name, value) if value is not None else (
                monkeypatch.delenv(name, raising=False)
            )
        assert refusal(job.launched).startswith(why)


class TestAgreement:
    """Before the first step, all ranks compare all their flags."""

    @pytest.fixture(scope="class")
    def ranks(self):
        """Yield three live ranks."""
        with Ranks(3) as ranks:
            yield ranks

    @pytest.mark.parametrize(
        "flag, odd", [("lr", 0.1), ("epochs", 3), ("resume", True)]
    )
    def test_of_each_flag(self, flag, odd, ranks):
        """Every rank names the flag, both values and the ranks that have them."""

        def ask(flag, odd):
            import job

            from types import SimpleNamespace

            import torch.distributed as dist

            args = {"lr": 0.05, "epochs": 2, "resume": False}
            usual = args[flag]
            if dist.get_rank() == 1:
                args[flag] = odd
            try:
                job.agree(SimpleNamespace(**args))
            except SystemExit as end:
                return usual, end.code

        for usual, said in ranks.run(ask, flag, odd, quiet=True):
            assert said == (
                f"--{flag} differs between ranks: {usual} on [0, 2], {odd} on [1]: "
                "give all nodes the same"
            )

    def test_of_equals(self, ranks):
        """Equal flags are accepted without a message."""

        def ask():
            import job

            from types import SimpleNamespace

            import scripts  # noqa: F401

            return job.agree(SimpleNamespace(lr=0.1, seed=2))

        assert ranks.run(ask, quiet=True) == [None] * 3


TWO_NODES = """
import os, sys
sys.path.insert(0, {scripts!r})
import ch5_ddp
flags = ["--samples=64", "--epochs=1", "--lr=0.1"]
if os.environ["GROUP_RANK"] == "1":
    flags[-1] = "--lr=0.2"
ch5_ddp.train(args := ch5_ddp.parse_args([*flags, {path!r}]), *ch5_ddp.setup(args))
"""


def test_two_nodes_with_another_rate_train_nothing(tmp_path):
    """Each agent says why and ends with an error, and no checkpoint is written."""
    script = tmp_path / "nodes.py"
    path = f"--checkpoint={tmp_path / 'x.pt'}"
    script.write_text(TWO_NODES.format(scripts=str(SCRIPTS), path=path))
    run = launch(script, 1, nnodes=2, timeout=60, check=False)
    assert run.exit_code != 0
    said = "--lr differs between ranks: 0.1 on [0], 0.2 on [1]: give all nodes the same"
    assert [said in error for error in run.errors.values()] == [True, True]
    assert not (tmp_path / "x.pt").exists()


def start(*command, cwd, **options):
    """Start a command in its own session, without a launcher's variables."""
    env = {k: v for k, v in os.environ.items() if k not in LAUNCHED}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(
        [sys.executable, *command],
        **pipes,
        text=True,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )


@contextlib.contextmanager
def trained(*command, cwd):
    """Yield a training that has printed its first line, and its processes."""
    process = start(*command, cwd=cwd)
    try:
        while "epoch=" not in process.stdout.readline():
            assert process.poll() is None
        yield process, psutil.Process(process.pid).children(recursive=True)
    finally:
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if os.getsid(one.pid) == process.pid:
                    one.kill()
        process.communicate()


def interrupted_twice(process, gap: float) -> str:
    """Send SIGINT twice, ``gap`` seconds apart; return what the process printed."""
    process.send_signal(signal.SIGINT)
    time.sleep(gap)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=20)[1]


INSIDE_SAVE = """
import os, signal, sys
sys.path.insert(0, {scripts!r})
import checkpoint, job, torch

class Slow:  # the signal arrives while torch writes a tensor
    def __init__(self, name, mode):
        self.file, self.writes = open(name, mode), 0
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
    def write(self, data):
        self.writes += 1
        if self.writes == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return self.file.write(data)

checkpoint.open = Slow
signal.signal(signal.SIGINT, job.stop)
checkpoint.save("x.pt", {{"weight": torch.ones(4096)}})
"""
LONG = "--epochs=9999", "--samples=64"
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"


class TestNobodyElse:
    """The process that started the job is gone, or wants it to end."""

    def test_torchrun_is_killed(self, tmp_path):
        """Its ranks notice, and end within 10 s."""
        with trained(*TORCHRUN, str(SCRIPTS / "ch5_ddp.py"), *LONG, cwd=tmp_path) as (
            launcher,
            ranks,
        ):
            assert len(ranks) >= 2
            launcher.kill()
            _, alive = psutil.wait_procs(ranks, timeout=10)
            for rank in alive:
                rank.kill()
            assert alive == []

    @pytest.mark.parametrize("moment", [0.2, 3])
    def test_a_spawning_parent_is_killed_early(self, moment, tmp_path):
        """Children that are still starting end as soon as they can notice."""
        command = str(SCRIPTS / "ch5_ddp_spawn.py"), *LONG
        process = start(*command, cwd=tmp_path)
        parent, children = psutil.Process(process.pid), []
        while len(children) < 3:  # two ranks and Python's resource tracker
            children = parent.children(recursive=True)
            time.sleep(0.01)
            assert process.poll() is None
        time.sleep(moment)
        children = parent.children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        for rank in alive:
            rank.kill()
        process.communicate()
        assert alive == []

    @pytest.mark.parametrize("gap", [0, 0.01, 0.1])
    def test_control_c(self, gap, tmp_path):
        """Two signals, as a terminal and torchrun send them, end it without a trace.

        There is no traceback, and no half-written file.
        """
        command = str(SCRIPTS / "ch2_before.py"), *LONG
        with trained(*command, cwd=tmp_path) as (process, _):
            err = interrupted_twice(process, gap)
        assert (process.returncode, err) == (130, "")
        assert os.listdir(tmp_path) in ([], ["ch2.pt"])

    def test_control_c_while_torch_writes(self, tmp_path):
        """Torch answers the exit with an error of its own, which is not shown."""
        program = INSIDE_SAVE.format(scripts=str(SCRIPTS))
        process = start("-c", program, cwd=tmp_path)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err, os.listdir(tmp_path)) == (130, "", [])

    @pytest.mark.parametrize("gap", [0, 0.01, 0.02])
    def test_control_c_during_the_imports(self, gap, tmp_path):
        """Imports take seconds, so Ctrl-C often comes during them; it ends quietly."""
        process = start(str(SCRIPTS / "ch2_before.py"), *LONG, cwd=tmp_path)
        maps = psutil.Process(process.pid).memory_maps
        while not any("libtorch" in part.path for part in maps()):
            assert process.poll() is None
        assert (interrupted_twice(process, gap), process.returncode) == ("", 130)
        assert os.listdir(tmp_path) == []

    def test_control_c_under_torchrun(self, tmp_path):
        """The terminal signals all, torchrun the ranks again; the ranks stay silent."""
        command = *TORCHRUN, str(SCRIPTS / "ch5_ddp.py"), *LONG
        with trained(*command, cwd=tmp_path) as (launcher, ranks):
            os.killpg(launcher.pid, signal.SIGINT)
            _, err = launcher.communicate(timeout=60)
            assert psutil.wait_procs(ranks, timeout=10)[1] == []
        *_, last = err.splitlines()
        assert last.startswith("torch.distributed.elastic.multiprocessing.api.Signal")
        assert last.endswith("got signal: 2") and "Root Cause" not in err
        assert err.count("Traceback") == 1 and "[rank" not in err
        assert not any(name.endswith(".new") for name in os.listdir(tmp_path))

    def test_a_refusal_after_the_group_is_joined(self, tmp_path):
        """A rank that refuses says why, and nothing else."""
        command = *TORCHRUN, str(SCRIPTS / "ch4_ranks.py"), "--env=2"
        process = start(*command, cwd=tmp_path)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "--env 2: must be 0 to 1\n" in err and "terminate" not in err

    def test_a_refusal_leaves_the_group_first(self, monkeypatch):
        """Or torch may abort at exit, in one run of several."""
        for name, value in LAUNCHED.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            assert refusal(job.refuse, "no") == "no" and not dist.is_initialized()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    @pytest.mark.parametrize("reader", ["gone", "full"])
    def test_nobody_reads(self, reader, tmp_path):
        """A closed pipe (`| head`) or a full disk gives a sentence, no traceback."""
        end, write = os.pipe()
        os.close(end)
        if reader == "full":
            write = os.open("/dev/full", os.O_WRONLY)
        command = str(SCRIPTS / "ch5_single.py"), "--epochs=2", "--samples=8"
        process = start(*command, cwd=tmp_path, stdout=write)
        os.close(write)
        _, err = process.communicate(timeout=60)
        why = {"gone": "Broken pipe", "full": "No space left on device"}[reader]
        assert process.returncode == 1
        assert err == f"cannot print to stdout: {why}: ended\n"


def test_a_parent_that_had_died_before(monkeypatch):
    """A rank ends at once if the process that it should watch isn't its parent."""
    code = "import scripts, job as s; s.os.environ['{}'] = '1'; s.watch({}); {}"
    code = code.format("TORCHELASTIC_USE_AGENT_STORE", 2**22 + 1, "s.time.sleep(60)")
    process = start("-c", code, cwd=SCRIPTS.parent)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (
        1,
        "ended: the launcher of this rank is gone\n",
    )


def test_a_loss_that_is_no_number(tmp_path):
    """All ranks end and say what to do, and no bad checkpoint is written."""
    path = tmp_path / "x.pt"
    flags = f"--checkpoint={path}", "--lr=1e30", "--samples=64", "--batch-size=8"

    def train(flags):
        import torch
        import torch.distributed as dist

        from scripts import ch5_ddp

        place = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
        try:
            ch5_ddp.train(ch5_ddp.parse_args(flags), *place)
        except SystemExit as end:
            return end.code

    with Ranks(2) as ranks:
        said = ranks.run(train, [*flags], quiet=True)
    assert said == ["epoch=0: the loss is nan: start with a lower --lr"] * 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["ch2_before", "ch5_single"])
def test_a_loss_that_is_no_number_in_one_process(name, tmp_path, monkeypatch):
    """A script of one process says the same."""
    monkeypatch.chdir(tmp_path)
    script = importlib.import_module(f"scripts.{name}")
    args = script.parse_args(["--lr=1e30", "--samples=64", "--batch-size=8"])
    said = refusal(script.train, args, torch.device("cpu"))
    assert said == "epoch=0: the loss is nan: start with a lower --lr"


class TestOneSentence:
    """When all ranks of a node find the same fault, one of them reports it."""

    def test_the_others_wait_for_it(self, monkeypatch):
        """The others wait, or torchrun would end the reporting rank too early."""
        slept = []
        monkeypatch.setattr(job.time, "sleep", slept.append)
        for name, value in LAUNCHED.items():
            monkeypatch.setenv(name, value)
        assert refusal(job.refuse, "no") == "no"
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        assert refusal(job.refuse, "no") == "no" and slept == []
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert refusal(job.refuse, "no") == "no" and slept == [9]

    @pytest.mark.parametrize("during", [False, True])
    @pytest.mark.parametrize(
        "error",
        [
            ConnectionResetError(104, "Connection reset by peer"),  # a worker's pipe
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
        ],
    )
    def test_a_killed_worker_is_not_called_another_rank(
        self, error, during, monkeypatch, capsys
    ):
        """A worker's pipe is Python's, and a peer's connection is gloo's."""
        monkeypatch.setenv("RANK", "0")
        if during:  # the worker dies while its rank is in torch.save
            late = RuntimeError("[enforce fail at inline_container.cc]")
            late.__context__, error = error, late
        job.brief(type(error), error, None)
        why = "a DataLoader worker was killed, often for want of memory"
        assert capsys.readouterr().err == f"[rank 0] ended: {why}\n"

    @pytest.mark.parametrize("error", ["Connection closed by peer [::1]", "other"])
    def test_an_echo_is_one_line(self, error, monkeypatch, capsys):
        """A peer's death is told in one line; any other error keeps its traceback."""
        monkeypatch.setenv("RANK", "3")
        try:
            raise RuntimeError(error)
        except RuntimeError as caught:
            job.brief(RuntimeError, caught, caught.__traceback__)
        said = capsys.readouterr().err
        if error == "other":
            assert "Traceback" in said and said.endswith("RuntimeError: other\n")
        else:
            why = "its connection to another rank is closed; look there"
            assert said == f"[rank 3] ended: {why}\n"


@pytest.mark.parametrize(
    "name",
    [name for name in WITH_CHECKPOINT if '"--resume"' not in SOURCES[name]],
)
def test_a_file_that_exists_is_not_written_over(name, tmp_path):
    """It is refused before any training, unless --overwrite allows it."""
    file = tmp_path / "notes.pt"
    file.write_text("notes")
    module = importlib.import_module(f"scripts.{name}")
    with pytest.raises(SystemExit, match=r"notes\.pt exists: --overwrite it, or name"):
        module.parse_args(["--checkpoint", str(file)])
    assert file.read_text() == "notes"
