"""The cases of the error clinic: one failure each, its cure, and how a log shows it.

``clinic/SLUG.py`` is a specimen whose prose has a paragraph for each of ``PARTS``.
``# %% broken`` fails as the field ``signature`` says, and ``# %% fixed`` does not. A
failure that is silent or slow has ``# %% invariant: what must hold``, which computes
the right value in another way and runs after each of the two. ``# %% guarded`` is the
broken training under ``allranks.guard``; the field ``beyond`` says why no guard can see
it. What needs a GPU is ``runs on: quoted``, with its message in ``# %% quoted``.

``# %% signs`` has regular expressions for the lines of a log that show the failure, one
a line, as they stand in logs of older releases, too. A word before one says more.
``maybe:`` the message has other causes; ``echo:`` another rank failed first; ``with:``
it supports the others (``with: ^...$`` only as the one line of a log); ``unless:`` it
takes the case away; ``torch:`` it counts only in a log that is of torch. With ``keys:
PREFIX`` the case stands only if missing and unexpected keys meet without that prefix,
and ``A && B`` counts A only if another line of the log matches B.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from allranks.clinic.specimens import PLACES, QUOTED, Specimen, split

CLASSES = {  # a class as specimens write it, and the name of its page
    "launch": "app_clinic_launch",
    "process group": "app_clinic_process_group",
    "DDP": "app_clinic_ddp",
    "data": "app_clinic_data",
    "checkpoint": "app_clinic_checkpoint",
    "DataParallel": "app_clinic_data_parallel",
    "model parallel": "app_clinic_model_parallel",
    "pipeline": "app_clinic_pipeline",
    "TP/FSDP2": "app_clinic_sharding",
    "AMP": "app_clinic_amp",
    "multi-node": "app_clinic_multi_node",
    "performance": "app_clinic_performance",
    "silent wrong": "app_clinic_silent",
}
SYMPTOMS = {  # how the broken cell may end
    "crash": ("raises", "dies"),
    "hang": ("hangs", "raises", "dies"),
    "silent": ("violates", "warns", "runs"),
    "slow": ("violates", "warns", "runs"),
}
PARTS = "You see", "Cause", "Cure", "Next time", "Links"
KINDS = "full", "maybe", "echo", "with", "unless", "torch", "keys"
FULL, MAYBE, ECHO, WITH, UNLESS, OURS, KEYS = KINDS
AND = " && "  # between the expressions of a sign that needs several lines
CELLS = "given", "broken", "fixed", "invariant", "guarded", "quoted", "signs"
_PART = re.compile(rf"^({'|'.join(PARTS)}): ", re.MULTILINE)
_SIGN = re.compile(rf"# (?:({'|'.join(KINDS[1:])}): )?(\S.*)")


def read(path: Path) -> Specimen:
    """Parse a file of the clinic.

    Raises:
        ValueError: if it is incomplete; the message names what is missing.
    """
    title, fields, prose, cells, notes = split(path)
    # split keeps the captured names: [before, name, text, name, text, ...].
    _, *texts = _PART.split(prose)
    parts = {n: t.strip() for n, t in zip(texts[::2], texts[1::2], strict=True)}
    signs = [_SIGN.fullmatch(line) for line in cells.get("signs", "").splitlines()]
    for fault in _faults(title, fields, parts, cells, notes, signs):
        raise ValueError(f"{Path(path).name} needs {fault}")
    quoted = re.sub(r"^# ?", "", cells.get("quoted", ""), flags=re.MULTILINE)
    played = "broken", "fixed", "guarded"
    return Specimen(
        path=Path(path),
        title=title,
        fields=fields,
        prose=prose,
        parts=parts,
        given=cells.get("given", ""),
        cells={name: cells[name] for name in played if name in cells},
        commands={name: notes[name] for name in played if name in notes},
        endless=fields["symptom"] == "hang",
        law=notes.get("invariant", ""),
        check=cells.get("invariant", ""),
        quoted=quoted,
        signs=tuple((m[1] or FULL, m[2]) for m in signs),
    )


def _faults(
    title: str,
    fields: dict[str, str],
    parts: dict[str, str],
    cells: dict[str, str],
    notes: dict[str, str],
    signs: list[re.Match | None],
) -> Iterator[str]:
    """Yield what is missing or misspelt in a file, as the end of a sentence."""
    symptom, place = fields.get("symptom"), fields.get("runs on", "")
    if not title or "class: " in title:
        yield "a title: the docstring's first line"
    for name, known in ("class", CLASSES), ("symptom", SYMPTOMS):
        if fields.get(name) not in known:
            yield f"{name}: one of {', '.join(known)}, not {fields.get(name)!r}"
    if not (place == QUOTED or PLACES.match(place)):
        yield f"runs on: N ranks, one process, N virtual GPUs or quoted, not {place!r}"
    for name in ("chapter",) if place == QUOTED else ("chapter", "signature"):
        if name not in fields:
            yield f"a field {name}"
    for name in PARTS[: 5 if place == QUOTED else 4]:
        if not parts.get(name):
            yield f"a paragraph that begins with {name!r}"
    # A crash or a hang shows itself; a silent or slow failure needs a check that tells
    # broken from fixed.
    wanted = {"broken", "fixed"}
    if place == QUOTED:
        wanted.add("quoted")
    if symptom in ("silent", "slow") and place != QUOTED:
        wanted.add("invariant")
    for name in sorted(wanted - set(cells)):
        yield f"a cell # %% {name}"
    for name in sorted(set(cells) - set(CELLS)):
        yield f"no cell # %% {name}: the names are {', '.join(CELLS)}"
    if "invariant" in cells and not notes.get("invariant"):
        yield "a sentence after # %% invariant: what must hold"
    # A silent failure says whether the guard sees it, and if it does not, why.
    if symptom == "silent" and ("guarded" in cells) != ("guard" in fields):
        yield "both a field guard and a cell # %% guarded, or neither"
    if symptom == "silent" and ("guard" in fields) == ("beyond" in fields):
        yield "either a field guard, or a field beyond: why the guard cannot see it"
    if symptom == "crash" and all(m and m[1] in (WITH, UNLESS, KEYS) for m in signs):
        yield "signs: a regular expression for a line of a log"
    if not all(signs):
        yield f"signs of the form '# REGEX' or '# KIND: REGEX', {', '.join(KINDS[1:])}"


def folder(path: Path) -> list[Specimen]:
    """Return all cases of a folder, sorted by class and then by name."""
    order = list(CLASSES)
    found = [read(file) for file in Path(path).glob("*.py")]
    return sorted(found, key=lambda c: (order.index(c.fields["class"]), c.slug))
