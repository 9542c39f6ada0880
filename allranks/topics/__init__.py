"""The subjects of the book, one folder each, and the figures that a reader can change.

``sums.py`` is a subject's arithmetic in plain Python, which knows no torch and is
tested as laws, and ``picture.py`` draws it. ``runs.py`` checks it on real ranks.
``figure.py`` and ``figure.js`` make an explorable of it, in JupyterLab and on a static
page; ``kit`` has what all explorables share.

>>> from allranks.topics import WhoIsWho
>>> WhoIsWho(nodes=[2, 1], rank=2).facts["node_rank"]
1
"""

import importlib
import re
from pathlib import Path

_CLASS = re.compile(r"^class (\w+)\(Explorable\):", re.MULTILINE)
# The class of each figure, and its folder. They are imported on demand, because a
# notebook needs one or two of them.
CLASSES = dict(
    sorted(
        (title, path.parent.name)
        for path in Path(__file__).parent.glob("*/figure.py")
        for title in _CLASS.findall(path.read_text("utf8"))
    )
)

__all__ = ["CLASSES", "by_name", *CLASSES]


def by_name(name: str) -> type:
    """Return the class of the explorable that is in ``NAME/figure.py``.

    Raises:
        LookupError: if there is none.
    """
    for title, module in CLASSES.items():
        if module == name:
            return getattr(importlib.import_module(f"{__name__}.{name}.figure"), title)
    raise LookupError(f"no explorable {name}: there are {', '.join(CLASSES.values())}")


def __getattr__(title: str) -> type:
    if title not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {title!r}")
    return by_name(CLASSES[title])
