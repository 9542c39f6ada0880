"""Gather what a release carries, or refuse a tag that is not this version's.

    python book/_tools/release.py --tag v0.1.0   # the tag, the version, CHANGELOG.md
    python book/_tools/release.py                # fills _build/release

The second command expects the book, the EPUB and the PDF in _build, where make release
builds them.
"""

import argparse
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for allranks, which may not be installed yet

from allranks import __version__  # noqa: E402

FIXTURES = re.compile(r"tests/fixtures/\w+")  # what a notebook reads besides scripts/
READ_ME = """The notebooks of All Ranks {version}, with the scripts that they import.

Install the wheel of the same release, then start JupyterLab in this folder:

    pip install "allranks-{version}-py3-none-any.whl[notebooks]"
    jupyter lab

Code is under the Apache License 2.0 (LICENSE), prose and pictures are under CC BY 4.0
(LICENSE-CC-BY-4.0).
"""


def notes(changelog: str, version: str) -> str:
    """Return what a change log says about a version, or nothing without a section."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def fault(tag: str, version: str, changelog: str) -> str:
    """Return why a tag cannot be released, or an empty text if it can."""
    if tag != f"v{version}":
        return f"tag {tag!r} is not v{version}, the version in allranks/__init__.py"
    if not notes(changelog, version):
        return f"CHANGELOG.md says nothing below a heading ## [{version}] - YYYY-MM-DD"
    return ""


def notebook_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file of the notebooks' archive, as (name there, path here).

    The notebooks are beside scripts/, because they import from it and Jupyter puts
    their own folder on ``sys.path``.
    """
    fixtures = set()
    for path in sorted(root.glob("notebooks/*.ipynb")):
        yield path.name, path
        fixtures |= set(FIXTURES.findall(path.read_text("utf8")))
    for folder in ["scripts", *sorted(fixtures)]:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path
    yield "LICENSE", root / "LICENSE"
    yield "LICENSE-CC-BY-4.0", root / "book" / "LICENSE"


def pack(root: Path, folder: Path) -> list[Path]:
    """Put the EPUB, the PDF and the two archives of a release into a folder.

    Raises:
        FileNotFoundError: if the book, the EPUB or the PDF was not built.
    """
    folder.mkdir(parents=True, exist_ok=True)
    papers = [root / "_build" / f"all-ranks.{kind}" for kind in ("epub", "pdf")]
    site = root / "_build" / "html"
    if missing := [p for p in (*papers, site / "index.html") if not p.is_file()]:
        raise FileNotFoundError(f"{missing[0]} is missing: make release builds it")
    for old in folder.glob("all-ranks*"):
        old.unlink()
    written = [Path(shutil.copy(paper, folder)) for paper in papers]
    name = f"all-ranks-notebooks-{__version__}"
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/README.txt", READ_ME.format(version=__version__))
        for inner, path in notebook_files(root):
            archive.write(path, f"{name}/{inner}")
    written.append(folder / f"{name}.zip")
    name = folder / f"all-ranks-book-{__version__}"
    written.append(Path(shutil.make_archive(str(name), "zip", site)))
    changelog = (root / "CHANGELOG.md").read_text("utf8")
    (folder.parent / "notes.md").write_text(f"{notes(changelog, __version__)}\n")
    return written


def main(argv: list[str] | None = None) -> None:
    """Check a tag, or gather the release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tag", help="only check this one, such as v0.1.0")
    parser.add_argument("--folder", type=Path, default=ROOT / "_build" / "release")
    options = parser.parse_args(argv)
    if options.tag is not None:
        changelog = (ROOT / "CHANGELOG.md").read_text("utf8")
        if why := fault(options.tag, __version__, changelog):
            parser.exit(2, f"{why}\n")
        return
    try:
        written = pack(ROOT, options.folder)
    except FileNotFoundError as error:
        parser.exit(2, f"{error}\n")
    print(*written, sep="\n")


if __name__ == "__main__":
    main()
