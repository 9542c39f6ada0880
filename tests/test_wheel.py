"""The wheel has the right files and dependencies, and its tools need no checkout."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from packaging.requirements import Requirement

import allranks
from allranks.base.paths import ROOT
from book._ext.runs import records
from book._tools import release

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
# beside allranks/, in allranks/_tree/
CARRIED = "book/_examples/train_cuda.py", "clinic", "exercises", "scripts"
# Modules whose distribution has another name.
DISTRIBUTIONS = {"IPython": "ipython", "sklearn": "scikit-learn"}

SESSION = [
    "%load_ext allranks",
    "%ranks 2",
    "%%ranks\nx = torch.ones(1) * (rank + 1)\ndist.all_reduce(x)\nprint(int(x))",
    "%ranks stop",
    "from allranks.topics import CLASSES, by_name\n"
    "shown = [by_name(name)() for name in CLASSES.values()]\n"
    "print('modules', all('export default' in one._esm for one in shown))\n"
    "print('styles', {len(one._css) > 1000 for one in shown})\n"
    "print(shown[0])",
    "import importlib.util\n"
    "from allranks import check, hints\n"
    "from allranks.exercises import files\n"
    "print('exercises', len(files.names()), hints('ex2_3', 1))\n"
    "stub = files.find('ex2_3').code('stub')\n"
    "check(files.load(stub, '<cell>')['ex2_3'])\n"
    "print('scripts', importlib.util.find_spec('scripts'))\n"
    "from allranks.base.paths import ROOT\n"
    "print('rehearsed', (ROOT / 'book/_examples/train_cuda.py').is_file())",
]
GUARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from allranks.guard import Guard, GuardError

dist.init_process_group("gloo")
rank = dist.get_rank()


def train(reduction):
    torch.manual_seed(0)
    model = DDP(nn.Linear(2, 1))
    watch = Guard(model, torch.optim.SGD(model.parameters(), 0.1))
    loss = lambda model, x: nn.functional.mse_loss(
        model(x), x[:, :1], reduction=reduction
    )
    try:
        watch.preflight(loss, torch.randn(8, 2)[4 * rank : 4 * rank + 4])
    finally:
        watch.remove()


train("mean")
print(f"rank {rank}: mean passed\\n", end="")
try:
    train("sum")
except GuardError as error:
    print(f"rank {rank}: {error}\\n", end="")
dist.destroy_process_group()
"""


pytestmark = pytest.mark.timeout(240)  # the first test waits for the environment


def pip(*words: str | Path) -> None:
    """Run pip without asking an index."""
    quiet = "--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"
    subprocess.run([sys.executable, "-m", "pip", *words, *quiet], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return the path of the wheel, built as pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (path,) = folder.iterdir()
    return path


class Environment:
    """A fresh environment with the wheel, and the packages of the tests' environment.

    A .pth file names the folder of those packages. Python doesn't read the .pth files
    in that folder, so an editable install of the checkout stays out of reach.
    """

    def __init__(self, folder: Path, wheel: Path):
        venv.create(folder)
        self.python, self.away = folder / "bin" / "python", folder / "away"
        self.away.mkdir()
        pip("--python", self.python, "install", wheel)
        (site,) = folder.glob("lib/python*/site-packages")
        self.site = site
        (site / "packages.pth").write_text(sysconfig.get_path("purelib"))

    def run(self, *words: str | Path, cwd: Path | None = None) -> str:
        """Run the environment's Python far from the checkout; return its stdout."""
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environ |= {"IPYTHONDIR": str(self.away), "OMP_NUM_THREADS": "1"}
        environ |= {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
        done = subprocess.run(
            [self.python, *words],
            cwd=cwd or self.away,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, wheel) -> Environment:
    """Return one environment for all tests."""
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


def test_it_holds_the_package_and_what_the_tools_read(wheel):
    """It holds each file of allranks/ and what its tools carry, and nothing else."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "allranks", *CARRIED],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: no list of the files that are ours")
    ours = {path for path in listed.stdout.split() if (ROOT / path).is_file()}
    ours -= {"clinic/outcomes.json"}
    want = {p if p.startswith("allranks/") else f"allranks/_tree/{p}" for p in ours}
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"allranks-{allranks.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(info)} == want
    assert {Path(name).suffix for name in want} == {
        ".py",
        ".js",
        ".css",
        ".json",
        ".toml",
        ".txt",  # what the scripts of Part II train on
    }


def test_import_needs_the_standard_library_only(fresh):
    """The package imports and says its version where -S hides all other packages."""
    code = f"import sys; sys.path.append({str(fresh.site)!r}); import allranks"
    code += "; print(allranks.__version__, allranks.__file__)"
    version, file = fresh.run("-S", "-c", code).split()
    assert version == allranks.__version__
    assert file.startswith(str(fresh.site))


def test_a_notebook_has_ranks_explorables_and_exercises(fresh):
    """IPython has the magics, all figures have their JavaScript, and checks run.

    No module named scripts can be imported. What a notebook rehearses is there.
    """
    path = fresh.away / "session.ipynb"
    cells = [v4.new_code_cell(cell) for cell in SESSION]
    nbformat.write(v4.new_notebook(cells=cells), path)
    output = fresh.run("-m", "IPython", "--colors=nocolor", path)
    num_exercises = len([*ROOT.glob("exercises/ex*.py")])
    assert "ranks 0–1: 3" in output
    assert "modules True\nstyles {True}\n" in output
    assert f"exercises {num_exercises} " in output
    assert "ex2_3: still the stub." in output
    assert output.rstrip().endswith("scripts None\nrehearsed True"), output


def test_diagnose_finds_the_case_of_a_log(fresh):
    """The command reads the clinic inside the wheel and prints what the page shows."""
    command = "python -m allranks.diagnose train.log"
    shown = records.read(ROOT / "book" / "_runs", records.Command(command))
    shutil.copy(ROOT / "book" / "_examples" / "train.log", fresh.away)
    assert fresh.run("-m", "allranks.diagnose", "train.log").rstrip() == shown


def test_vgpu_runs_a_script_on_two_devices(fresh):
    """With ``python -m allranks.vgpu 2``, torch finds two devices."""
    script = fresh.away / "two.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(3, device=torch.accelerator.current_accelerator())\n"
        "print(torch.accelerator.device_count(), x.device.type, x.sum().item())\n"
    )
    output = fresh.run("-m", "allranks.vgpu", "2", script)
    assert re.fullmatch(r"2 (?!cpu)\w+ 3\.0\n", output)


def test_the_guard_lets_a_mean_pass_and_raises_at_a_sum(fresh):
    """The guard works in a torchrun job, in a file that isn't part of the book."""
    script = fresh.away / "guarded.py"
    script.write_text(GUARDED)
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    output = fresh.run(*torchrun, script)
    for rank in range(2):
        assert f"rank {rank}: mean passed\n" in output
        assert re.search(rf"rank {rank}: .*0\.5 times the gradient", output), output


def test_launch_finds_the_scripts(fresh):
    """launch() runs a script of the wheel, with the job.py that is beside it."""
    code = "from allranks import launch; print(launch('ch4_ranks', 1, timeout=180))"
    assert "[rank 0/1] " in fresh.run("-c", code)


def test_the_notebooks_of_a_release_find_what_they_import(fresh, tmp_path):
    """With only their archive and the wheel, they import scripts/ beside them."""
    lines = ["import sys"]
    for name, path in release.notebook_files(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / name)
        if path.suffix == ".ipynb":
            lines += [line for line in notebook_imports(path) if line[0] != " "]
    lines.append("found = [m for n, m in sys.modules.items() if n[:8] == 'scripts.']")
    lines.append("print(*{m.__file__.rpartition('/')[0] for m in found}, len(found))")
    folder, count = fresh.run("-c", "\n".join(lines), cwd=tmp_path).split()
    assert folder == f"{tmp_path}/scripts"
    assert int(count) >= 5


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """Return requirements by name, without those that name our own extras."""
    found = [Requirement(line) for line in lines]
    return {one.name: one for one in found if one.name != "allranks"}


DEPENDENCIES = requirements(PROJECT["dependencies"])
EXTRAS = {n: requirements(v) for n, v in PROJECT["optional-dependencies"].items()}


def imports(code: str) -> set[str]:
    """Return the modules that code imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def notebook_imports(path: Path) -> list[str]:
    """Return the lines of a notebook's code that import something."""
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    return re.findall(r"^ *(?:from|import) .+", code, re.MULTILINE)


def third_party(names: set[str]) -> set[str]:
    """Return the distributions of imported modules, without ours."""
    ours = {"allranks", "scripts", "guard", *sys.stdlib_module_names}
    names = {name.partition(".")[0] for name in names} - ours
    return {DISTRIBUTIONS.get(name, name).replace("_", "-") for name in names}


def test_dependencies_are_what_the_package_imports():
    """No dependency is missing or unused, in the package and in what it starts."""
    folders = "allranks", "exercises", "scripts"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    used = set().union(*(imports(path.read_text("utf8")) for path in files))
    beside = {path.stem for path in ROOT.glob("scripts/*.py")}  # as job.py is
    assert third_party(used - beside) == set(DEPENDENCIES)


def test_the_guard_needs_torch_alone():
    """The guard imports only torch, so ``pip install --no-deps`` is enough for it."""
    files = [*ROOT.glob("allranks/guard/*.py")]
    used = set().union(*(imports(path.read_text("utf8")) for path in files))
    assert third_party(used) == {"torch"}


def test_the_extra_for_notebooks_is_what_they_import_and_who_runs_them():
    """``allranks[notebooks]`` is all that a reader without a checkout needs."""
    lines = [
        line for p in ROOT.glob("notebooks/*.ipynb") for line in notebook_imports(p)
    ]
    used = set().union(*(imports(line.strip()) for line in lines))
    runs = {"jupyterlab", "ipykernel"}
    assert third_party(used) - set(DEPENDENCIES) == set(EXTRAS["notebooks"]) - runs


def test_pyproject_and_the_pinned_requirements_agree():
    """They name the same packages, and each pin lies within pyproject's bounds."""
    text = (ROOT / "requirements.txt").read_text("utf8")
    pins = dict(re.findall(r"^([\w-]+)==(\S+) +# \S", text, re.MULTILINE))
    stated = DEPENDENCIES | EXTRAS["notebooks"] | EXTRAS["book"]
    assert set(pins) == set(stated)
    assert [str(r) for n, r in stated.items() if pins[n] not in r.specifier] == []


def test_the_citation_names_this_version():
    """The package, the wheel and the citation have one version number."""
    citation = (ROOT / "CITATION.cff").read_text("utf8")
    assert f"\nversion: {allranks.__version__}\n" in citation
