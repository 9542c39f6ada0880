"""Find what a test reads, and whether that has changed since it last passed.

The inputs of a test are its own file, what that file imports from this tree, directly
or through others, and what the test was seen to open or start while it ran. Tests of
one file share these, except where ``OWN`` and ``VIEWS`` are more specific.
"""

import ast
import functools
import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = "_build/html", "_build/.doctrees/whole.css"  # not in git, but read by tests
REPORT = "_build/html/book/app_status.html"  # left out: it shows the tests' results
INDEX = (
    "_build/html/_sources/",
    "_build/html/_static/search_index.js",
    "_build/html/objects.inv",
)
ALWAYS = ("pyproject.toml", "requirements.txt", "tests/conftest.py")
# Among files of this form, a test reads only the one that its parameter names.
OWN = {
    "tests/book/test_pages.py": "_build/html/{}.html",
    "tests/book/test_commands.py": "book/{}.md",
    "tests/clinic/test_live.py": "clinic/{}.py",
    "tests/clinic/test_launched.py": "clinic/{}.py",
    "tests/test_errata.py": "errata/{}.py",
    "tests/test_exercises.py": "exercises/{}.py",
}


def _commands(text: bytes) -> bytes:
    return b"\n".join(
        re.findall(rb"^```\{run\}.*?^```", text, re.MULTILINE | re.DOTALL)
    )


def _cells(text: bytes) -> bytes:
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    return json.dumps(
        [(c["source"], c["outputs"], c["metadata"]) for c in cells]
    ).encode()


# The part of a file that a test reads: a page's commands, a notebook's code cells.
VIEWS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "tests/book/test_commands.py": (r"book/\w+\.md", _commands),
    "notebooks/": (r"notebooks/\w+\.ipynb", _cells),
}


class Tree:
    """The files of the tree as they are now.

    Args:
        root: a checkout.
    Raises:
        SystemExit: if git cannot list the files.
    """

    def __init__(self, root: Path = ROOT):
        self.root = root
        command = "git", "ls-files", "-co", "--exclude-standard", "-z"
        listed = subprocess.run(command, cwd=root, capture_output=True)
        if listed.returncode:
            raise SystemExit(f"{root} is no checkout of git: make test runs everything")
        names = {name for name in listed.stdout.decode().split("\0") if name}
        for place in BUILT:
            path = root / place
            found = path.rglob("*") if path.is_dir() else [path]
            names |= {p.relative_to(root).as_posix() for p in found if p.is_file()}
        names.discard(REPORT)
        self.files = {name for name in names if (root / name).is_file()}
        self._imports: dict[str, frozenset[str]] = {}
        self._views: dict[tuple[str, str], str] = {}

    @functools.cache  # noqa: B019 - a tree lives as long as the program
    def bytes(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.root / name).read_bytes()

    def digest(self, name: str, test_file: str = "") -> str:
        """Hash a file, or the part of it that the tests of ``test_file`` read."""
        pattern, view = next(
            (rule for start, rule in VIEWS.items() if test_file.startswith(start)),
            ("", None),
        )
        seen = view is not None and re.fullmatch(pattern, name)
        key = (name, test_file if seen else "")
        if key not in self._views:
            text = self.bytes(name)
            text = view(text) if seen else text
            self._views[key] = hashlib.sha256(text).hexdigest()[:16]
        return self._views[key]

    @functools.cache  # noqa: B019
    def imports(self, name: str) -> frozenset[str]:
        """Return the files of this tree that a Python file imports, at any depth."""
        found, todo = set(), [name]
        while todo:
            for other in self._direct(todo.pop()):
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return frozenset(found - {name})

    def _direct(self, name: str) -> frozenset[str]:
        """Return the files that a file imports itself, and those beside it by name."""
        if name not in self._imports:
            stem = name.removesuffix(".py")
            beside = {f"{stem}{end}" for end in (".js", ".css", ".json")}
            words = _imported(self.bytes(name), name) if name.endswith(".py") else ()
            found = {self._file(module) for module in words}
            self._imports[name] = frozenset((found | beside) & self.files)
        return self._imports[name]

    def _file(self, module: str) -> str:
        path = module.replace(".", "/")
        return f"{path}.py" if f"{path}.py" in self.files else f"{path}/__init__.py"

    def inputs(self, nodeid: str, reads: Iterable[str]) -> frozenset[str]:
        """Return the files that a test depends on.

        Args:
            nodeid: as pytest writes it, ``tests/test_x.py::test_y[id]``.
            reads: what the tests of its file were seen to open and to start.
        """
        test_file, _, name = nodeid.partition("::")
        found = self._of_file(test_file, frozenset(reads))
        form, label = OWN.get(test_file), re.search(r"\[(.*)\]", name)
        if not (form and label):
            return found
        begin, end = form.split("{}")
        kind = {f for f in found if f.startswith(begin) and f.endswith(end)}
        own = {f for f in kind if _names(label[1], f[len(begin) : -len(end)])}
        if not own:
            return found
        return found - (kind - own) - {f for f in found if f.startswith(INDEX)}

    @functools.cache  # noqa: B019
    def _of_file(self, test_file: str, reads: frozenset[str]) -> frozenset[str]:
        """Return the files that the tests of a file depend on."""
        roots = {test_file, *ALWAYS, *reads}
        roots |= {f"{p.as_posix()}/conftest.py" for p in Path(test_file).parents}
        if b"browser" in self.bytes(test_file):  # Python can't see what a browser opens
            roots |= {name for name in self.files if name.startswith(BUILT)}
        roots &= self.files
        return frozenset(roots.union(*map(self.imports, roots)))

    def state(self, nodeid: str, reads: Iterable[str]) -> str:
        """Return a hash of all that a test depends on, or "" if its file is gone."""
        test_file = nodeid.partition("::")[0]
        if test_file not in self.files:
            return ""
        return self._state(test_file, self.inputs(nodeid, reads))

    @functools.cache  # noqa: B019
    def _state(self, test_file: str, inputs: frozenset[str]) -> str:
        lines = [f"{name} {self.digest(name, test_file)}" for name in sorted(inputs)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _names(label: str, stem: str) -> bool:
    """Tell whether a parameter's label names a file: ``hang-fixed`` names ``hang``."""
    return bool(re.search(rf"(?<![\w/]){re.escape(stem)}(?![\w/])", label))


def _imported(source: bytes, name: str) -> set[str]:
    """Return the modules that a file names in imports, in functions too."""
    package = name.removesuffix("/__init__.py").removesuffix(".py").split("/")
    if not name.endswith("/__init__.py"):
        package = package[:-1]
    found = set()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    parents = {m.rpartition(".")[0] for m in found}
    return found | parents
