"""A script as one file, with what it takes from its neighbors inside.

A script imports job.py, and others such as tasks.py, which lie beside it. What a page
offers for download needs nothing beside it: whatever the script uses of its neighbors
stands below its own code, and ``job.say`` is ``say`` there.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FIRST = "job"  # whose beginning runs before the slow imports
REST = "# The rest is the same in many scripts: what a job owes its user."


class Module:
    """One of the files: its statements, and what each of them defines and uses."""

    def __init__(self, path: Path) -> None:
        self.name, self.folder = path.stem, path.parent
        self.source = path.read_text("utf8")
        self.tree = ast.parse(self.source)
        self.doc, *self.body = self.tree.body
        self.imports = [
            n for n in self.body if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        self.modules = {  # neighbors that it imports whole
            alias.name
            for node in self.imports
            if isinstance(node, ast.Import)
            for alias in node.names
            if self.is_neighbor(alias.name)
        }
        self.names = {  # what it takes from neighbors by name
            alias.asname or alias.name: (node.module, alias.name)
            for node in self.imports
            if isinstance(node, ast.ImportFrom) and self.is_neighbor(node.module)
            for alias in node.names
        }
        self.defined = {name: node for node in self.body for name in defines(node)}

    def is_neighbor(self, name: str) -> bool:
        """Tell whether a module is a file beside this one."""
        return (self.folder / f"{name}.py").is_file()

    def neighbor(self, name: str) -> "Module":
        """Return another file of the folder."""
        return read(self.folder / f"{name}.py")

    def _is_prefixed(self, part: ast.AST) -> bool:
        """Tell whether this is such as ``job.say``."""
        names = isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        return names and part.value.id in self.modules

    def uses(self, node: ast.AST, later: bool) -> Iterator[tuple[str, str]]:
        """Yield what a statement takes, as (module, name); its own names included.

        Args:
            later: whether functions count that will be called, or only what is taken
                at once, such as a base class, a decorator and an annotation.
        """
        for part in ast.walk(node) if later else at_once(node):
            if self._is_prefixed(part):
                yield part.value.id, part.attr
            elif isinstance(part, ast.Name):
                if part.id in self.names:
                    yield self.names[part.id]
                elif part.id in self.defined:
                    yield self.name, part.id

    def text(self, node: ast.stmt) -> str:
        """Return a statement's source, with the comments above it, without prefixes.

        Raises:
            ValueError: if a function binds a name that a prefix set apart.
        """
        lines = self.source.splitlines()
        first = min(
            [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
        )
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        for function in ast.walk(node):
            if isinstance(function, ast.FunctionDef):
                self._check(function)
        cuts = [
            (part.value.lineno, part.value.col_offset)
            for part in ast.walk(node)
            if self._is_prefixed(part)
        ]
        for line, column in sorted(cuts, reverse=True):
            text = lines[line - 1]
            head = text.encode()[:column].decode()  # ast counts bytes
            lines[line - 1] = head + text[len(head) :].partition(".")[2]
        return "\n".join(lines[first - 1 : node.end_lineno])

    def _check(self, function: ast.FunctionDef) -> None:
        bound = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
        taken = set()
        for part in ast.walk(function):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                bound.add(part.id)
            elif self._is_prefixed(part):
                taken.add(part.attr)
        if both := sorted(bound & taken):
            where = f"{self.name}.py: {function.name}() binds {both[0]!r}"
            raise ValueError(f"{where}, which is a neighbor's name, too: rename it")


def read(path: Path) -> Module:
    """Return a file, which is read again only if it has changed."""
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, stamp: int) -> Module:
    return Module(path)


def defines(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a file defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def names_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the modules that an import statement names."""
    if isinstance(node, ast.ImportFrom):
        return [node.module]
    return [alias.name for alias in node.names]


def is_standard(line: str) -> bool:
    """Tell whether an import line takes from the standard library."""
    return line.split()[1].partition(".")[0] in sys.stdlib_module_names


def is_main(node: ast.stmt) -> bool:
    """Tell whether a statement is the ``if __name__ == "__main__":`` at the end."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def around(job: Module) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """Return what job.py does before and after it imports torch, without imports."""
    slow = next(n for n in job.imports if ast.unparse(n) == "import torch")
    before = [n for n in job.body if n.lineno < slow.lineno and n not in job.imports]
    calls = [n for n in job.body if isinstance(n, ast.Expr)]
    return before, [n for n in calls if n.lineno > slow.lineno]


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what of a statement is evaluated when it is reached."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.FunctionDef) and child in node.body):
            yield from at_once(child)


def needed(script: Module, later: bool = True) -> list[tuple[Module, ast.stmt]]:
    """Return the neighbors' statements that a script needs, in their order there.

    Args:
        later: whether those count that are needed only when a function is called.
    """
    found: dict[tuple[str, int], tuple[Module, ast.stmt]] = {}
    first = script.neighbor(FIRST) if FIRST in script.modules else None
    begin = around(first)[0] if first else []
    own = [node for node in script.body if later or not is_main(node)]
    waiting = [use for node in own for use in script.uses(node, later)]
    waiting += [use for node in begin for use in first.uses(node, True) if later]
    while waiting:
        name, symbol = waiting.pop()
        if name == script.name:
            continue
        source = script.neighbor(name)
        if symbol in source.names:  # which has it from a neighbor itself
            waiting.append(source.names[symbol])
            continue
        if symbol not in source.defined:
            raise ValueError(f"{script.name}.py: {name}.py has no {symbol!r}")
        node = source.defined[symbol]
        if (name, node.lineno) not in found and node not in begin:
            found[name, node.lineno] = source, node
            waiting += source.uses(node, later)
    order: dict[str, None] = {}

    def place(name: str) -> None:
        """Put a file after those that its base classes and decorators are from."""
        mine = [found[key] for key in found if key[0] == name]
        taken = {use[0] for source, node in mine for use in source.uses(node, False)}
        for other in sorted(taken - {name} - {*order}):
            place(other)
        order[name] = None

    for name, _ in sorted(found):
        if name not in order:
            place(name)
    return [found[key] for name in order for key in sorted(found) if key[0] == name]


def tidy(text: str) -> str:
    """Return a program without the imports that it does not use, the others sorted."""
    fix = "check", "--fix-only", "--select=F401,I", "--isolated", "--line-length=79"
    for words in fix, ("format", "--isolated", "--line-length=79"):
        command = [sys.executable, "-m", "ruff", *words, "-q", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        text = done.stdout
    return text


def one_file(path: Path) -> str:
    """Return a script that needs no file beside it.

    Raises:
        ValueError: if a name would mean two things in the one file.
    """
    script = read(path)
    if not (script.modules or script.names):
        return script.source
    rest, soon = needed(script), needed(script, later=False)
    own = [n for n in script.body if n not in script.imports]
    job = script.neighbor(FIRST)
    begin, go_on = around(job) if FIRST in script.modules else ([], [])
    both = [*((script, n) for n in own), *rest, *((job, n) for n in begin)]
    names = [name for _, node in both for name in defines(node)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path.name}: {twice[0]!r} is a neighbor's name, too")
    lines = [
        source.text(node)
        for source in dict.fromkeys([script, job, *(source for source, _ in rest)])
        for node in source.imports
        if not any(map(source.is_neighbor, names_of(node)))
    ]
    slow = [line for line in lines if not is_standard(line)]
    soon += [
        (s, n) for s, n in rest if isinstance(n, ast.Assign) and (s, n) not in soon
    ]
    functions = [s.text(n) for s, n in rest if (s, n) not in soon]
    parts = [
        script.text(script.doc),
        *(line for line in lines if is_standard(line)),
        *(job.text(n) for n in begin),
        *slow,
        *(job.text(n) for n in go_on),
        *(s.text(n) for s, n in soon),
        *(script.text(n) for n in own if not is_main(n)),
        *([REST, *functions] if functions else []),
        *(script.text(n) for n in own if is_main(n)),
    ]
    return tidy("\n".join(parts))
