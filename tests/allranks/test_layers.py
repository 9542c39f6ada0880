"""The layers of the package: which may import which, and how long a module may be."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from graphlib import TopologicalSorter
from pathlib import Path

from allranks.base.paths import PACKAGE, ROOT

# A layer, and those that it may import. Each stands below the layers that it names, so
# the table cannot contain a cycle. Any other layer is refused. Each subject is a layer.
LAYERS = {
    "base": (),
    "guard": (),
    "doctor": (),
    "checkpoint": (),
    "cluster": (),
    "vgpu": ("base",),
    "topics": (),
    "topics.links": (),
    "topics.timelines": ("base",),
    "backends": ("topics.links", "vgpu"),
    "launch": ("base",),
    "predict": (),
    "live": (
        "backends",
        "base",
        "launch",
        "predict",
        "topics.links",
        "topics.timelines",
        "vgpu",
    ),
    "topics.kit": ("base",),
    "topics.arrivals": ("base", "live", "topics.kit"),
    "topics.batches": ("base", "live", "topics.kit"),
    "topics.data_parallel": ("base", "live", "topics.kit", "vgpu"),
    "topics.buckets": ("base", "live", "topics.data_parallel", "topics.kit"),
    "topics.collectives": ("base", "live", "topics.kit"),
    "topics.crossings": (
        "base",
        "live",
        "topics.collectives",
        "topics.kit",
        "topics.links",
    ),
    "topics.compression": (
        "base",
        "live",
        "topics.crossings",
        "topics.kit",
        "topics.links",
    ),
    "topics.loader": ("base", "live", "topics.kit"),
    "topics.memory": ("base", "topics.buckets", "topics.kit"),
    "topics.numbers": ("base", "topics.kit"),
    "topics.pipelines": ("base", "live", "topics.kit"),
    "topics.sharding": ("base", "topics.kit"),
    "topics.state_dicts": ("base", "live", "topics.kit"),
    "topics.step": (
        "base",
        "topics.buckets",
        "topics.data_parallel",
        "topics.memory",
    ),
    "topics.topology": ("base", "launch", "topics.kit"),
    "openings": ("base", "topics.collectives", "topics.memory"),
    "pictures": ("base", "openings", "topics.collectives"),
    "clinic": ("base", "live", "vgpu"),
    "diagnose": ("base", "clinic"),
    "rehearse": (
        "backends",
        "base",
        "clinic",
        "diagnose",
        "guard",
        "launch",
        "vgpu",
    ),
    "hangs": ("base", "clinic", "live"),
    "exercises": ("base", "live"),
    "__init__": ("base", "launch", "live", "predict"),
}
WITH_TORCH = {"runs.py", "figure.py"}  # of a topic; all else in it knows no torch
MOST = 600  # lines; a shorter one is not better if it cuts an idea in two
WHY = re.compile(r"# (?!noqa|type:|fmt:)")  # a comment for people
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer(module: str) -> str:
    """Return the layer of a module below allranks: a folder, or a topic's in topics.

    >>> layer("topics.buckets.sums"), layer("live.ranks"), layer("topics")
    ('topics.buckets', 'live', 'topics')
    """
    first, *rest = module.split(".")
    return f"topics.{rest[0]}" if first == "topics" and rest else first


def dotted(path: Path) -> str:
    """Return a file's module below allranks: ``topics.buckets.sums``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if len(parts) == 1 else [p for p in parts if p != "__init__"])


NAMES = {dotted(path) for path in MODULES}


def modules_imported(path: Path) -> set[str]:
    """List the modules of ours that a file imports, at its top and inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: write allranks.LAYER in full"
            for alias in node.names:  # a module of a package, or a name in a module
                name = f"{node.module}.{alias.name}"
                of_package = node.module == "allranks"
                is_module = of_package or name.removeprefix("allranks.") in NAMES
                modules.add(name if is_module else node.module)
    ours = {m.partition(".")[2] for m in modules if m.startswith("allranks.")}
    return {"live" if module == "Ranks" else module for module in ours}


def imported(path: Path) -> set[str]:
    """List the layers that a file imports, other than its own."""
    return {layer(module) for module in modules_imported(path)} - {layer(dotted(path))}


def test_each_module_imports_only_what_its_layer_may():
    """A new layer has to be put into the table, below those that it uses."""
    refused = {
        dotted(path): more
        for path in MODULES
        if (more := imported(path) - {*LAYERS[layer(dotted(path))]})
    }
    assert not refused


def test_each_entry_of_the_table_is_used():
    """An entry that nothing uses would allow an import that nobody has decided on."""
    unused = {name: {*may} for name, may in LAYERS.items()}
    for path in MODULES:
        unused[layer(dotted(path))] -= imported(path)
    assert not {name: may for name, may in unused.items() if may}


def test_the_table_has_no_circle_and_no_layer_that_is_gone():
    """A layer imports only layers above it, and each layer exists."""
    above = set()
    for name, may in LAYERS.items():
        assert set(may) <= above, name
        above.add(name)
    assert above == {layer(dotted(path)) for path in MODULES}


def test_no_modules_import_each_other_in_a_circle():
    """Not within a layer either: a circle is one module that was cut in two.

    Raises CycleError, which names the modules of a circle.
    """
    graph = {dotted(path): modules_imported(path) for path in MODULES}
    assert sum(map(len, graph.values())) > 500
    TopologicalSorter(graph).prepare()


def test_each_module_holds_one_idea():
    """At most 600 lines are enough to keep an idea in one piece."""
    lengths = {dotted(p): len(p.read_text("utf8").splitlines()) for p in MODULES}
    assert not {name: length for name, length in lengths.items() if length > MOST}


def test_each_long_function_says_why():
    """A function over 25 lines has a comment: a reason, a shape, an expected value."""
    silent = []
    for path in MODULES:
        text = path.read_text("utf8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [t.start[0] for t in tokens if WHY.match(t.string)]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = range(node.lineno, node.end_lineno + 1)
                if len(lines) > 25 and not any(line in lines for line in comments):
                    silent.append(f"{dotted(path)}.{node.name}")
    assert not silent


def test_only_runs_and_figures_know_torch():
    """Sums and pictures import no torch, neither directly nor through others."""
    folders = (PACKAGE / name for name in ("topics", "base", "openings", "pictures"))
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    free = [dotted(path) for path in paths if path.name not in WITH_TORCH]
    assert sum(name.endswith(".sums") for name in free) >= 14
    code = "import importlib, sys\n" + "\n".join(
        f"importlib.import_module('allranks.{name}')\n"
        f"assert 'torch' not in sys.modules, '{name}'"
        for name in free
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_tests_mirror_the_package():
    """Each folder of tests/allranks is named after a layer; each layer has tests."""
    tests = ROOT / "tests" / "allranks"
    tested = {
        layer(".".join(path.parent.relative_to(tests).parts))
        for path in tests.rglob("test_*.py")
        if path.parent != tests
    }
    assert not tested - set(LAYERS)
    tested_elsewhere = {"exercises", "hangs"}  # with their contents
    assert not set(LAYERS) - tested - tested_elsewhere - {"__init__", "topics"}
