"""The rows of the errata: a claim of an article, and what is right.

``errata/a1_NAME.py`` has cells ``# %% wrong`` and ``# %% right``, or, for a claim in
words, ``# %% claim`` and ``# %% fact``. Its field ``outcome`` says how the first ends.
"""

from pathlib import Path

from allranks.clinic.specimens import PLACES, Specimen, split

PAIRS = ("wrong", "right"), ("claim", "fact")
OUTCOMES = "raises", "warns", "hangs", "runs"


def read(path: Path) -> Specimen:
    """Parse a row's file.

    Raises:
        ValueError: if a part is missing or misspelt; the message names it.
    """
    title, fields, prose, cells, commands = split(path)
    given = cells.pop("given", "")
    place, outcome = fields.get("runs on", ""), fields.get("outcome")
    # All conditions are evaluated, but the first fault alone is told: later ones may
    # only follow from it.
    for fault, found in {
        "a title, fields and prose": not (title and fields and prose),
        f"cells {PAIRS}, found {tuple(cells)}": tuple(cells) not in PAIRS,
        f"runs on: {PLACES.pattern}, found {place!r}": not PLACES.match(place),
        f"outcome: one of {OUTCOMES}, found {outcome!r}": outcome not in OUTCOMES,
    }.items():
        if found:
            raise ValueError(f"{Path(path).name} needs {fault}")
    return Specimen(
        path=Path(path),
        title=title,
        fields=fields,
        prose=prose,
        given=given,
        cells=cells,
        commands=commands,
        endless=outcome == "hangs",
    )


def folder(path: Path) -> list[Specimen]:
    """Return all rows of a folder in their order, with a2 before a10 and b1."""
    found = [read(file) for file in Path(path).glob("[a-z]*_*.py")]
    return sorted(found, key=lambda s: (s.row[0], int(s.row[1:] or 0)))
