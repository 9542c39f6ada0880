"""Write the doctor into one file: ``python -m allranks.doctor.pack doctor.pyz``.

Copy it to a machine and run ``python3 doctor.pyz`` there. The file has this package in
an otherwise empty ``allranks``, so it needs Python 3.8 and nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTER = '"""The part of All Ranks that looks at one machine: its doctor."""\n'
MAIN = "allranks.doctor.command:script"


def pack(target: str | Path) -> None:
    """Write the file, and create its folder if need be.

    Raises:
        OSError: if it cannot be written.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        outer = Path(folder, "allranks")
        ours = shutil.ignore_patterns("__pycache__", Path(__file__).name)
        shutil.copytree(HERE, outer / HERE.name, ignore=ours)
        (outer / "__init__.py").write_text(OUTER, "utf8")
        zipapp.create_archive(folder, target, "/usr/bin/env python3", MAIN)


def main(argv: list[str] | None = None) -> None:
    """Read the command line and write the file; say in one sentence if that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="such as doctor.pyz")
    target = parser.parse_args(argv).file
    try:
        pack(target)
    except OSError as error:
        sys.exit(f"cannot write {target}: {error.strerror}")
    print(f"{target}: copy it to a machine, and start it there with python3")


if __name__ == "__main__":
    main()
