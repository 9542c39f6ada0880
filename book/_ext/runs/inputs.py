"""Find what a recorded output depends on, so that it is replayed when that changes.

The inputs of an output are the code that printed it, the modules of this tree which
that code imports at any depth, what plays it (live ranks, a grader, the launcher), and
the pinned versions of packages.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path

from allranks import _HOMES, topics

LAZY = {  # the modules of names that a package imports when somebody asks for them
    "allranks": _HOMES,
    "allranks.topics": {k: f"{name}.figure" for k, name in topics.CLASSES.items()},
}
PLAYERS = {  # what plays the files of a folder, without being imported there
    "clinic": ("allranks.clinic.play",),
    "errata": ("allranks.clinic.play",),
    "exercises": ("allranks.exercises.grader",),
    "notebooks": ("allranks.live.magic", "allranks.launch"),
}
NAMED = (  # tests and notebooks start, show or read these by their stems
    *("book/*.md", "book/_examples/*.py", "book/_runs/*.txt"),
    *("notebooks/*.ipynb", "scripts/[a-z]*.py"),
)
GLOB = re.compile(r"\"((?:book|notebooks|scripts|clinic|errata|exercises)/[^\"\s]+)\"")
MAGIC = re.compile(r"^[ \t]*[%!].*$", re.MULTILINE)
MODULE = re.compile(r"-m\"?,? ?\"?(allranks[\w.]*)")  # in a shell or in a list
PINNED = re.compile(r"^[\w.\[\]-]+==\S+", re.MULTILINE)


def code(path: Path) -> str:
    """Return a file's code; of a notebook, its code cells without their outputs."""
    return "\n\n".join(cell["source"] for cell in _cells(path))


def _cells(path: Path) -> list[dict]:
    """Return a file's code cells: text and, in a notebook, what they printed."""
    text = path.read_text("utf8")
    if path.suffix != ".ipynb":
        return [{"source": text}]
    return [
        {"source": "".join(cell["source"]), "outputs": cell["outputs"]}
        for cell in json.loads(text)["cells"]
        if cell["cell_type"] == "code"
    ]


def short(text: str) -> str:
    """Return the digest of a text, as records hold it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Tree:
    """A tree's files as they are now: each is read and parsed once.

    Args:
        root: a checkout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digest, self._direct = cache(self._digest), cache(self._direct)
        self.exists = cache(lambda name: (root / name).is_file())

    def digest(self, names: Iterable[str], *texts: str) -> str:
        """Hash files with all that they need, the pinned versions, and further texts.

        Args:
            names: files, as paths from the root.
            texts: what counts besides them, such as a recorded output.
        """
        files = sorted(set().union(*(self.needs(name) for name in names)))
        lines = [f"{name} {self._digest(name)}" for name in files]
        return short("\n".join([self._pinned, *lines, *texts]))

    def needs(self, name: str) -> set[str]:
        """Return the files that a file needs in order to run, itself included."""
        players = PLAYERS.get(name.partition("/")[0], ())
        found, waiting = set(), [name, *self._files(players)]
        while waiting:
            if (needed := waiting.pop()) not in found:
                found.add(needed)
                waiting += self._direct(needed)
        return found

    @cached_property
    def _pinned(self) -> str:
        path = self.root / "requirements.txt"
        text = path.read_text("utf8") if path.is_file() else ""
        return "\n".join(PINNED.findall(text))

    @cached_property
    def _stems(self) -> dict[str, set[str]]:
        """Return page, notebook, script and its records by the stem that they share."""
        found: dict[str, set[str]] = {}
        for pattern in NAMED:
            for name in self._glob(pattern):
                for stem in re.findall(r"ch\d+_\w+", name) or [Path(name).stem]:
                    found.setdefault(stem, set()).add(name)
        return found

    def _glob(self, pattern: str) -> set[str]:
        """Return the files that a pattern finds, as paths from the root."""
        paths = filter(Path.is_file, self.root.glob(pattern))
        return {path.relative_to(self.root).as_posix() for path in paths}

    def _digest(self, name: str) -> str:
        path = self.root / name
        if not path.is_file():
            return ""
        return short(json.dumps(_cells(path)))

    def _direct(self, name: str) -> set[str]:
        """Return the files that a file imports, starts, or has beside it."""
        path = self.root / name
        if path.suffix not in (".py", ".ipynb") or not path.is_file():
            return set()
        source = code(path)
        beside = {Path(name).with_suffix(end).as_posix() for end in (".js", ".json")}
        modules, named = _imported(source, name), set()
        if name.startswith(("notebooks/", "tests/")):  # which start what they name
            started = MODULE.findall(source)
            modules |= {*started, *(f"{module}.__main__" for module in started)}
            words = set(re.findall(r"\w+", source))
            named = named.union(*(self._stems[w] for w in words & self._stems.keys()))
            if ".md" not in source:  # it starts what the page shows, and reads no prose
                named = {one for one in named if not one.endswith(".md")}
            named = named.union(*map(self._glob, GLOB.findall(source)))
        if name.startswith("tests/"):
            beside |= {f"{folder}/conftest.py" for folder in Path(name).parents}
            named = named | self._glob(f"{Path(name).parent}/scripts/*.py")
        return self._files(modules) | named | set(filter(self.exists, beside))

    def _files(self, modules: Iterable[str]) -> set[str]:
        """Return the files of those modules that belong to the tree."""
        paths = [module.replace(".", "/") for module in modules]
        forms = "{}.py", "{}/__init__.py", "scripts/{}.py"
        found = {form.format(path) for path in paths for form in forms}
        return set(filter(self.exists, found))


def _imported(source: str, name: str) -> set[str]:
    """Return the modules that import statements name, those in functions too."""
    package, found = Path(name).parent.as_posix().split("/"), set()
    try:
        tree = ast.parse(MAGIC.sub("", source))
    except SyntaxError:  # in a cell that is wrong on purpose
        return found
    # The package imports most of itself in functions, for whoever asks for it.
    whole = name != "allranks/__init__.py"
    for node in _statements(tree) if whole else ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names = [alias.name for alias in node.names]
            homes = LAZY.get(module, {})
            names += [homes[name] for name in names if name in homes]
            found |= {module, *(f"{module}.{name}" for name in names)}
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through the statements below a node, and not through what they compute."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from _statements(child)
