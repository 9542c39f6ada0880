"""A forked program does and prints the same as one that is really started."""

import subprocess
import sys
import textwrap
from pathlib import Path

import forks
import psutil
import pytest

PROGRAMS = {
    "ends": "print(__name__, sys.argv[1:], os.getcwd(), __file__, os.environ['EXTRA'])",
    "writes": "print('a'); print('b', file=sys.stderr); os.write(1, b'c\\n')",
    "raises": "def inner():\n    raise ValueError('no')\ninner()",
    "exits": "sys.exit(3)",
    "refuses": "raise SystemExit('--lr 0: must be above 0')",
    "is killed": "os.kill(os.getpid(), 9)",
    "aborts": "import signal; signal.signal(6, signal.SIG_DFL); os.abort()",
    "is interrupted": "os.kill(os.getpid(), 2)",
    "goes on": "import atexit, threading, time\natexit.register(print, 'last')\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
    "knows its threads": "import torch; print(torch.get_num_threads())",
    "finds its neighbour": "import neighbour; print(neighbour.__file__)",
    "spawns": "import torch.multiprocessing as mp\ndef f(i): print('child', i)\n"
    "if __name__ == '__main__': mp.spawn(f, nprocs=1)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ends_as_a_start_does(name, tmp_path, monkeypatch):
    """A forked program ends with the same exit code and the same output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXTRA", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (tmp_path / "program.py").write_text(f"import os, sys\n{PROGRAMS[name]}\n")
    (tmp_path / "neighbour.py").write_text("")
    ends = []
    for popen in subprocess.Popen, forks.popen:
        with open(tmp_path / "said", "w+") as said:
            process = popen(
                [sys.executable, "-u", "program.py", "--flag"],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            code = process.wait(60)
            said.seek(0)
            ends.append((code, said.read()))
    assert type(process) is forks.Popen
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "torchrun",
    [["-m", "torch.distributed.run"], [str(Path(sys.executable).parent / "torchrun")]],
    ids=["module", "file"],
)
@pytest.mark.parametrize("popen", [forks.popen, forks.launcher])
def test_a_forked_torchrun_forks_its_ranks_or_starts_one(tmp_path, popen, torchrun):
    """They descend from the torchrun; a launcher's rank 0 is a started interpreter."""
    program = tmp_path / "program.py"
    code = """
        import sys
        known = "torch" in sys.modules
        import os, psutil
        me = psutil.Process()
        lines = [p.cmdline()[1:2] for p in [me, *me.parents()[:2]]]
        num = len(set(map(tuple, lines)))
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], num, known)
    """
    program.write_text(textwrap.dedent(code))
    command = [sys.executable, *torchrun, "--standalone"]
    with open(tmp_path / "said", "w+") as said:
        process = popen(
            [*command, "--nproc-per-node=2", str(program)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            start_new_session=True,
        )
        assert process.wait(60) == 0
        said.seek(0)
        first = "2 1 True" if popen is forks.popen else "2 2 False"
        assert sorted(said.read().splitlines()) == [f"0 {first}", "1 2 1 True"]


def test_nothing_outlives_the_one_that_asked(tmp_path):
    """When the process that asked is gone, the server and its children end."""
    (tmp_path / "program.py").write_text("import time; time.sleep(60)")
    code = (
        "import forks, os, sys, time\n"
        "os.environ['ALLRANKS_FORKS'] = f'{os.getcwd()}/{os.getpid()}-own'\n"
        "print(forks.Popen([sys.executable, 'program.py']).pid)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    _, alive = psutil.wait_procs([psutil.Process(int(done.stdout))], timeout=10)
    assert alive == []
