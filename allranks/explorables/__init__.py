"""Explorables: objects that a reader turns, in JupyterLab and on a static page.

>>> from allranks.explorables import WhoIsWho
>>> WhoIsWho(nodes=[2, 1], rank=2).facts["node_rank"]
1
"""

import importlib

# Loaded when asked for: a page or a notebook needs one, and each needs other things.
CLASSES = {
    "Buckets": "buckets",
    "Collectives": "collectives",
    "DataParallelForward": "data_parallel",
    "Pipeline": "pipelines",
    "Sampler": "batches",
    "StateDictKeys": "state_dicts",
    "WhoIsWho": "topology",
}

__all__ = ["CLASSES", "Buckets", "Collectives", "DataParallelForward", "Pipeline"]
__all__ += ["Sampler", "StateDictKeys", "WhoIsWho", "by_name"]


def by_name(name: str) -> type:
    """Return the class of the explorable that lives in ``NAME.py``.

    Raises:
        LookupError: there is none.
    """
    for title, module in CLASSES.items():
        if module == name:
            return getattr(importlib.import_module(f"{__name__}.{name}"), title)
    raise LookupError(f"no explorable {name}: there are {', '.join(CLASSES.values())}")


def __getattr__(title: str):
    if title not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {title!r}")
    return by_name(CLASSES[title])
