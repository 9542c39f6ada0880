"""The layers of the package: which may import which, and how long a module may be."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from allranks.paths import PACKAGE, ROOT

# A layer, and those that it may import. Each stands below the layers that it names, so
# the table cannot contain a cycle. Any other layer is refused.
LAYERS = {
    "paths": (),
    "report": (),
    "sums": (),
    "guard": (),
    "doctor": (),
    "checkpoint": (),
    "pictures": ("sums",),
    "vgpu": ("pictures",),
    "backends": ("sums", "vgpu"),
    "launch": ("paths", "report"),
    "live": ("backends", "launch", "pictures", "report", "sums", "vgpu"),
    "runs": ("sums", "vgpu"),
    "clinic": ("launch", "live", "report", "vgpu"),
    "diagnose": ("clinic", "paths"),
    "rehearse": (
        "backends",
        "clinic",
        "diagnose",
        "guard",
        "launch",
        "report",
        "sums",
        "vgpu",
    ),
    "hangs": ("clinic", "live", "report"),
    "exercises": ("live", "paths", "report"),
    "explorables": ("launch", "live", "pictures", "report", "runs", "sums"),
    "__init__": ("launch", "live", "report"),
}
MOST = 600  # lines; a shorter one is not better if it cuts an idea in two
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    """Return the layer of a module's file: its folder, or its name at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name(path: Path) -> str:
    """Return a test's id, the path within the package."""
    return str(path.relative_to(PACKAGE))


@cache
def imported(path: Path) -> set[str]:
    """List the modules that a file imports, at its top and inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name(path)}: write allranks.LAYER in full"
            found.add(node.module)
            if node.module == "allranks":  # a layer, or a name in __init__
                found |= {f"allranks.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=name)
class TestModule:
    """Every file of the package obeys its layer and the limit on lines."""

    def test_imports_only_what_its_layer_may(self, path):
        """A new layer has to be put into the table, below those that it uses."""
        used = {m.split(".")[1] for m in imported(path) if m.startswith("allranks.")}
        used = {("live" if part == "Ranks" else part) for part in used}
        assert used - {layer(path)} <= {*LAYERS[layer(path)]}

    def test_holds_one_idea(self, path):
        """At most 600 lines are enough to keep an idea in one piece."""
        assert len(path.read_text("utf8").splitlines()) <= MOST


def test_the_table_has_no_circle_and_no_layer_that_is_gone():
    """A layer imports only layers above it, and each layer exists."""
    above = set()
    for which, may in LAYERS.items():
        assert set(may) <= above, which
        above.add(which)
    assert above == {layer(path) for path in MODULES}


def test_each_entry_of_the_table_is_used():
    """An entry that nothing uses would allow an import that nobody has decided on."""
    used = {which: set() for which in LAYERS}
    for path in MODULES:
        parts = {m.split(".")[1] for m in imported(path) if m.startswith("allranks.")}
        used[layer(path)] |= parts
    missing = {w: {*may} - used[w] for w, may in LAYERS.items() if {*may} - used[w]}
    assert not missing


def test_sums_know_no_torch():
    """The sums import no torch, neither directly nor through another module."""
    modules = [p.stem for p in PACKAGE.glob("sums/*.py") if p.stem != "__init__"]
    assert len(modules) > 5
    lines = [f"import allranks.sums.{module}" for module in modules]
    code = "\n".join(["import sys", *lines, "print('torch' in sys.modules)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_tests_mirror_the_package():
    """Each folder of tests/allranks is named after a layer; each layer has tests."""
    here = ROOT / "tests" / "allranks"
    folders = {p.parent.name for p in here.glob("*/test_*.py")}
    files = {p.stem.removeprefix("test_") for p in here.glob("test_*.py")}
    assert folders <= set(LAYERS)
    tested_elsewhere = {"exercises", "hangs"}  # with their contents
    assert set(LAYERS) - folders - files <= tested_elsewhere | {"__init__", "paths"}
