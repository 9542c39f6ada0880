"""Settings that a module or a data set carries: numbers, words, switches, configs."""

import re

import torch

OWN = re.compile(  # what a rank may have alone, by its name
    "rank|seed|device|host|node|path|dir|file|name|log|verb|debug|main|master|shard|start"
    "|begin|end|first|last|offset|index|idx|id$|time|stamp|port|addr|count|call|step|seen"
    "|best|loss|acc|metric|total|num_s|role|stage|world|local|worker|cache|epoch|iter|ptr"
)
CONFIG = "Config", "Namespace", "Args"  # what classes of settings are called
MANY = 200  # entries; larger tables are data


def constants(held: list[tuple[str, object]]) -> dict[str, str]:
    """Plain values by name, as text; those that may be a rank's own are left out."""
    found = {}
    for name, value in held:
        inner = {name: value}
        if isinstance(value, dict) and len(value) < MANY:
            inner = {f"{name}.{key}": x for key, x in value.items()}
        elif type(value).__name__.endswith(CONFIG) and hasattr(value, "__dict__"):
            inner = {f"{name}.{key}": x for key, x in vars(value).items()}
        for key, item in inner.items():
            if _plain(item) and not OWN.search(key.rpartition(".")[2].lower()):
                found[key] = repr(item)
    return found


def _plain(value) -> bool:
    if type(value) is float:  # one that somebody wrote, 0.07, not a clock's
        return len(repr(value)) < 9
    return type(value) in (bool, int, str, torch.dtype) and len(repr(value)) < 40


def lines(found: dict[str, str]) -> str:
    """The constants as a text."""
    return "\n".join(f"{name}={value}" for name, value in found.items())


def differ(texts: list[str], ranks: list[int]) -> tuple[str, list[str]] | None:
    """The first that all ranks have and that is not the same: name and values."""
    rows = [dict(x.split("=", 1) for x in t.split("\n") if x) for t in texts]
    for name in rows[0]:
        values = [own.get(name, "") for own in rows]
        if "" not in values and len(set(values)) > 1 and not _ranked(values, ranks):
            return name, values
    return None


def _ranked(values: list[str], ranks: list[int]) -> bool:
    """Whether values tell the rank, and are meant to: 0 and 1, cuda:0 and cuda:1."""
    if set(values) == {"True", "False"}:
        return values.index("True") == 0 and values.count("True") == 1
    if all(v.isdigit() for v in values):
        step = int(values[1])
        return values in ([str(r) for r in ranks], [str(step * r) for r in ranks])
    quoted = [re.sub(r"\d+", "", v) for v in values if v[0] in "'\""]
    return len(quoted) == len(values) and len(set(quoted)) == 1
