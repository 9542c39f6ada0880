"""Write each script as one file that needs none beside it, as the pages offer it.

python book/_tools/scripts.py [FOLDER]
"""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)  # for book._ext

from book._ext.runs.one_file import one_file  # noqa: E402


def main(folder: str = "_build/scripts") -> None:
    """Write all scripts into a folder, and the text that some of them read."""
    place = ROOT / folder
    place.mkdir(parents=True, exist_ok=True)
    for path in sorted(ROOT.glob("scripts/[cs]*_*.py")):
        (place / path.name).write_text(one_file(path), "utf8")
    for path in ROOT.glob("scripts/*.txt"):
        shutil.copy(path, place)
    print(f"one file for each script: {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
