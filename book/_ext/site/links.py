"""Links on each page: files to download, places to run it, ways to change it.

Files are copied into the site. The other links need the repository's public address,
from ``ALLRANKS_REPOSITORY`` (``make book REPOSITORY=https://github.com/OWNER/NAME``),
from GitHub Actions, or from the remote ``origin``. If none of them knows it, those
links are left out.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from book._ext.chapters.chapter_map import SECTION
from book._ext.runs.one_file import one_file

FILES = "_downloads"
PAIRED = "ch", "start"  # how pages' names begin that have several scripts
HOST = "https://github.com"
REMOTE = re.compile(
    r"(?:https?://(?:[^/@]*@)?|ssh://git@|git@)github\.com[/:]([\w.-]+/[\w.-]+?)"
    r"(?:\.git)?/?"
)
COLAB = """# Colab has neither this book nor these packages.
!git clone -q --depth 1 --branch {branch} {address} /content/book
%cd -q /content/book/notebooks
%pip install -q anywidget cloudpickle psutil safetensors scikit-learn
import os, sys
sys.path.insert(0, "/content/book")
os.environ["PYTHONPATH"] = "/content/book"  # for the processes that we start"""


@dataclass(frozen=True)
class Repository:
    """A public repository: its address without a slash at the end, and a branch."""

    address: str
    branch: str = "main"

    @property
    def name(self) -> str:
        """Return OWNER/NAME on github.com, and an empty text elsewhere."""
        return self.address.removeprefix(f"{HOST}/") if HOST in self.address else ""


def normal(address: str) -> str:
    """Return a remote's web address without credentials, or nothing if not on GitHub.

    >>> normal("git@github.com:owner/name.git")
    'https://github.com/owner/name'
    >>> normal("https://user:secret@github.com/owner/name")
    'https://github.com/owner/name'
    """
    match = REMOTE.fullmatch(address.strip())
    return f"{HOST}/{match[1]}" if match else ""


def find(root: Path, env: dict[str, str]) -> Repository | None:
    """Find the book's repository, if anything says where it is.

    Raises:
        ValueError: ``ALLRANKS_REPOSITORY`` is not an address on GitHub.
    """
    branch = env.get("GITHUB_BASE_REF") or env.get("GITHUB_REF_NAME", "")
    if env.get("GITHUB_REF_TYPE") == "tag" or not branch:
        head = git(root, "rev-parse", "--abbrev-ref", "origin/HEAD")
        branch = head.removeprefix("origin/") if head else "main"
    if stated := env.get("ALLRANKS_REPOSITORY", "").strip():
        if not normal(stated):
            raise ValueError(
                f"REPOSITORY={stated} is no address like {HOST}/OWNER/NAME"
            )
        return Repository(normal(stated), branch)
    if name := env.get("GITHUB_REPOSITORY"):
        return Repository(f"{env.get('GITHUB_SERVER_URL', HOST)}/{name}", branch)
    address = normal(git(root, "remote", "get-url", "origin"))
    return Repository(address, branch) if address else None


def git(root: Path, *words: str) -> str:
    """Return what git answers, or nothing if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", root, *words], capture_output=True, text=True, timeout=10
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def files(root: Path, page: str) -> list[str]:
    """List the notebook and scripts that belong to a page, as paths from the root.

    They are those of the whole chapter, or of the start page; on a section page, the
    scripts that it shows.
    """
    stem = Path(page).name
    notebook = f"notebooks/{stem}.ipynb"
    found = [notebook] if (root / notebook).is_file() else []
    every = f"{stem.partition('_')[0]}_*" if stem.startswith(PAIRED) else stem
    scripts = sorted(path.name for path in root.glob(f"scripts/{every}.py"))
    scripts.sort(key=lambda name: name != f"{stem}.py")  # the chapter's own first
    found += [f"scripts/{name}" for name in scripts]
    if SECTION.fullmatch(stem):
        text = (root / f"{page}.md").read_text("utf8")
        found = [name for name in found if name in text]
    return found


def launches(repository: Repository, notebook: str) -> dict[str, str]:
    """Return the services that can run a notebook, with their addresses for it."""
    name, branch = repository.name, quote(repository.branch)
    if not name:
        return {}
    places = {
        "Colab": "https://colab.research.google.com/github/{name}/blob/{branch}/{file}",
        "Binder": "https://mybinder.org/v2/gh/{name}/{one}?urlpath=lab/tree/{file}",
        "Codespaces": "https://codespaces.new/{name}/tree/{branch}",
    }
    one = quote(repository.branch, safe="")  # a branch's slashes must not split it
    fields = {"name": name, "branch": branch, "one": one, "file": notebook}
    return {place: address.format(**fields) for place, address in places.items()}


def changes(repository: Repository, source: str) -> dict[str, str]:
    """Return the ways to change a page: edit its file, or say what is wrong."""
    address, branch = repository.address, quote(repository.branch)
    return {
        "Edit this page": f"{address}/edit/{branch}/{source}",
        "Report a mistake": f"{address}/issues/new?title={quote(f'{source}: ')}",
    }


def bar(
    root: Path, page: str, source: str, up: str, repository: Repository | None
) -> str:
    """Write the line below a page's title."""
    own = files(root, page)
    groups = []
    if own:
        links = [
            f'<a href="{up}{FILES}/{name}" download>{Path(name).name}</a>'
            for name in own
        ]
        groups.append(("Download", links))
    notebook = own[0] if own and own[0].endswith(".ipynb") else ""
    if repository and notebook:
        links = anchors(launches(repository, notebook))
        if links:
            links.append(f'<a href="{up}book/app_where.html">what differs there</a>')
            groups.append(("Run in", links))
    if repository:
        groups.append(("", anchors(changes(repository, source))))
    if not groups:
        return ""
    lines = "".join(
        f"<li>{f'<span>{label}:</span> ' if label else ''}{', '.join(links)}</li>"
        for label, links in groups
    )
    label = 'class="page-links" aria-label="Files of this page"'
    return f"<nav {label}><ul>{lines}</ul></nav>"


def anchors(links: dict[str, str]) -> list[str]:
    """Write links that lead out of the book."""
    return [f'<a href="{escape(to)}">{text}</a>' for text, to in links.items()]


def add(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Put the line of links below the page's title."""
    if app.builder.name != "html" or doctree is None:
        return
    source = Path(app.env.doc2path(page)).relative_to(app.srcdir).as_posix()
    up = context["pathto"]("", 1)
    repository = app.config.allranks_repository
    line = bar(
        Path(app.srcdir), page, source, up, repository and Repository(*repository)
    )
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Put the files into the site, each script with all that it needs inside."""
    if exception or app.builder.name != "html":
        return
    for page in app.env.found_docs:
        for name in files(Path(app.srcdir), page):
            source, target = Path(app.srcdir, name), Path(app.outdir, FILES, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".py":
                target.write_text(one_file(source), "utf8")
            else:
                shutil.copy(source, target)


class ColabCell(SphinxDirective):
    """``{colab-cell}``: what a notebook's first cell must be on Colab."""

    def run(self) -> list[nodes.Node]:
        """Fill in the repository, or say what to fill in."""
        known = self.config.allranks_repository or (f"{HOST}/OWNER/NAME", "main")
        text = COLAB.format(address=known[0], branch=known[1])
        cell = nodes.literal_block(text, text, language="ipython3")
        if self.config.allranks_repository:
            return [cell]
        words = (
            "This copy of the book doesn't know where its repository is published: "
            "replace OWNER/NAME with its owner and name on GitHub."
        )
        return [cell, nodes.paragraph("", words)]


def setup(app: Sphinx) -> None:
    """Find the repository once, and have pages read again when it changes."""
    found = find(Path(app.srcdir), dict(os.environ))
    value = (found.address, found.branch) if found else None
    app.add_config_value("allranks_repository", value, "env")
    app.add_directive("colab-cell", ColabCell)
    app.connect("html-page-context", add, priority=400)
    app.connect("build-finished", copy)
