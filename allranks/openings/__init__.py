"""The picture that opens a chapter: its idea in one look, before any code.

A module with the name of a page is its picture: a sentence ``ALT`` that says what the
picture shows, and ``draw``. A picture is drawn twice: ``WIDE`` for a column, its halves
side by side, and ``NARROW`` for a phone, where they stand one below the other. Letters
keep their size in both.
"""

from importlib import import_module
from pathlib import Path

from allranks.openings.sheet import NARROW, WIDE

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*_*.py"))


def opening(name: str, narrow: bool = False) -> str:
    """Return the picture that opens a page, as SVG.

    Raises:
        LookupError: if no picture has this name.
    """
    if name not in NAMES:
        raise LookupError(f"no opening {name}: there are {', '.join(NAMES)}")
    module = import_module(f"{__name__}.{name}")
    return module.draw(NARROW if narrow else WIDE).svg(module.ALT)
