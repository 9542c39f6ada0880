"""Where the tree is: a checkout, or the part of it that the wheel carries."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_CARRIED = PACKAGE / "_tree"  # pyproject.toml puts what tools and notebooks read there
ROOT = _CARRIED if _CARRIED.is_dir() else PACKAGE.parent
