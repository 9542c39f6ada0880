"""``-m allranks.backends`` runs a script as it is, on another backend than gloo."""

import subprocess
import sys

import pytest

from allranks import launch
from allranks.backends import __main__ as runner
from allranks.base.paths import PACKAGE
from allranks.topics.collectives.costs import cost

SCRIPT = """
import sys
import torch
import torch.distributed as dist

print(__name__, sys.argv[1:], sys.path[0] in __file__)
default = dist.get_default_backend_for_device("cpu")
for given in ["gloo"], [None], [default], [], ["GLOO"], ["cpu:gloo"]:
    dist.init_process_group(*given, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(x := torch.ones(1))
    groups = [dist.new_group(backend=b) for b in (None, "gloo", "Gloo", "cpu:gloo")]
    groups.append(dist.init_device_mesh("cpu", (1, 1)).get_group(1))
    kinds = {type(group).__name__ for group in (dist.group.WORLD, *groups)}
    print(dist.get_backend(), *kinds, x.item())
    dist.destroy_process_group()
"""


def test_whatever_would_have_been_gloo_is_the_link(tmp_path):
    """Named, chosen by torch, or asked for; and the script sees itself as ever."""
    (tmp_path / "own.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "allranks.backends", "link:eth1"]
    command += [tmp_path / "own.py", "--flag", "link"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    first, *rest = run.stdout.splitlines()
    assert first == "__main__ ['--flag', 'link'] True", run.stderr
    assert rest == ["link SetLink 1.0"] * 5 + ["cpu:link SetLink 1.0"]


def test_a_chapters_script_takes_what_its_formula_says_at_least():
    """Chapter 7's algorithms, with messages of 5 ms, on two ranks."""
    link, n = "link:5000us+0.02GB/s", 400_000
    args = link, "scripts/ch7_collectives.py", "--kb", str(n // 1000)
    lines = launch(PACKAGE / "backends" / "__main__.py", 2, *args).lines[0]
    for name, line in zip(("ring", "tree"), lines, strict=False):
        steps, share = cost("all_reduce", name, 2)
        least = 1e3 * (steps * 5e-3 + share * n / 2e7)
        assert f"{name}: {steps} steps" in line
        assert float(line.split("; ")[1].removesuffix(" ms")) > 0.99 * least


@pytest.mark.parametrize(
    ("backend", "script", "why"),
    [
        ("link:eth0", __file__, "link 'eth0': there are nvlink4, "),
        ("link", __file__, "link '': name one, such as nvlink4 or "),
        ("link:eth1,eth25", __file__, "link 'eth1,eth25': across is both eth1 and "),
        ("shm:foo=bar", __file__, "backend 'shm:foo=bar': 'shm' has no settings"),
        ("mpi", __file__, "there is no backend 'mpi' of ours: shm, link"),
        ("shm", "none.py", "none.py: no such script"),
    ],
)
def test_what_cannot_be_run_is_refused(backend, script, why, monkeypatch):
    """With one sentence, on rank 0."""
    monkeypatch.setenv("ALLRANKS_LINK", "")  # register() sets it; now it goes again
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(SystemExit) as end:
        runner.main([backend, script])
    assert str(end.value).startswith(why) and "\n" not in str(end.value)
