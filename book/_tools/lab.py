"""Write notebooks to work in: without results, so that no answer precedes its question.

``lab/`` gets a copy of each notebook that ``make lab`` opens and Git ignores. A copy in
which somebody has worked stays as it is; another one follows its original. With
``--in-place`` the notebooks themselves are changed, where they are thrown away later,
as on Binder.

A saved result would stand below its **Predict** before the reader has guessed, and
JupyterLab shows no saved picture of a notebook that it does not trust. The marks that
only the built book understands are replaced by words.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
WRITTEN = ".written.json"  # what each copy was when it was written, by its name
LABEL = re.compile(r"^\((\w+)\)=\n+", re.MULTILINE)
TITLED = re.compile(r"^\((\w+)\)=\n+#+ (.+)$", re.MULTILINE)
ROLE = re.compile(r"\{ref\}`(?:([^`<]+?)\s*<\w+>|(\w+))`")


def blank(notebook: dict[str, Any], titles: dict[str, str]) -> dict[str, Any]:
    """Return a notebook (its JSON) as a reader should meet it.

    Args:
        notebook: is left as it is.
        titles: the heading that stands at each label of the book.
    """
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell = cell | {"outputs": [], "execution_count": None}
        elif cell["cell_type"] == "markdown":
            source = LABEL.sub("", "".join(cell["source"]))
            source = ROLE.sub(lambda m: m[1] or f"*{titles[m[2]]}*", source)
            cell = cell | {"source": source}
        cells.append(cell)
    metadata = {k: v for k, v in notebook["metadata"].items() if k != "widgets"}
    return notebook | {"cells": cells, "metadata": metadata}


def all_titles() -> dict[str, str]:
    """Return the heading at each label of the book's pages and notebooks."""
    texts = [page.read_text("utf8") for page in (ROOT / "book").glob("*.md")]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text("utf8"))["cells"]
        texts += ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    return {label: title for text in texts for label, title in TITLED.findall(text)}


def write(folder: Path) -> None:
    """Write what is missing or older than its original into a folder."""
    titles, known = all_titles(), folder / WRITTEN
    folder.mkdir(exist_ok=True)
    written = json.loads(known.read_text("utf8")) if known.exists() else {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        copy = folder / path.name
        if copy.exists() and copy != path and written.get(copy.name) != _hash(copy):
            continue  # somebody has worked in it
        notebook = blank(json.loads(path.read_text("utf8")), titles)
        copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False), "utf8")
        written[copy.name] = _hash(copy)
        if copy != path:
            known.write_text(json.dumps(written, indent=1), "utf8")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: list[str] | None = None) -> None:
    """Write the copies, or change the notebooks themselves."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--in-place", action="store_true", help="keep no original")
    options = parser.parse_args(argv)
    write(ROOT / ("notebooks" if options.in_place else "lab"))


if __name__ == "__main__":
    main(sys.argv[1:])
