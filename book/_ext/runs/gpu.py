"""``{gpu}``: what ``make gpu`` found on a machine with GPUs, from book/_data/gpu.json.

A sentence names the machine, its versions and the date; a table has a row for each
item, with its figures or its last line. Items that failed or were not run are listed
too, with the reason. Without the file, the page says that no such run is recorded.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from book._ext.runs.status import Status

DATA = "book/_data/gpu.json"
NONE = "No GPU run is recorded: make gpu on a machine with one writes it."
MACHINE = (
    "Run on {date}: {gpus} ({memory}), driver {driver}, CUDA {cuda}, PyTorch {torch}, "
    "NCCL {nccl}. {counts}."
)


def load(path: Path) -> dict | None:
    """Read the file, or return None if it does not exist.

    Raises:
        ValueError: if it is not JSON, lacks a part, or is a rehearsal on CPUs.
    """
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text("utf8"))
        data["machine"]["names"], data["items"]
    except (json.JSONDecodeError, LookupError, TypeError) as error:
        raise ValueError(f"{DATA} is not what make gpu writes ({error!r})") from None
    if data["machine"].get("rehearsal"):
        raise ValueError(f"{DATA} is a rehearsal without a GPU: make gpu writes it")
    return data


def sentence(data: dict) -> str:
    """Say which machine ran, when, and how many items ended in which way.

    >>> gpu = {"names": ["H100"] * 2, "memory_bytes": [85_000_000_000] * 2,
    ...     "date": "2026-11-22", "driver": "580.1", "cuda": "13.0", "torch": "2.13.0",
    ...     "nccl": None}
    >>> sentence({"machine": gpu, "items": [{"outcome": "passed"}]})[:50]
    'Run on 2026-11-22: 2 × H100 (79 GiB each), driver '
    """
    unknown = dict.fromkeys(("date", "driver", "cuda", "torch", "nccl"))
    machine = unknown | data["machine"]
    kinds = Counter(machine["names"])
    gpus = ", ".join(f"{n} × {name}" if n > 1 else name for name, n in kinds.items())
    sizes = sorted({round(size / 2**30) for size in machine.get("memory_bytes", [])})
    memory = " to ".join(str(size) for size in sizes[:1] + sizes[1:][-1:]) + " GiB"
    memory += " each" if len(machine["names"]) > 1 else ""
    ends = Counter(item["outcome"] for item in data["items"])
    counts = ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
    known = {key: value or "unknown" for key, value in machine.items()}
    return MACHINE.format(**known | {"gpus": gpus, "memory": memory, "counts": counts})


def told(item: dict) -> str:
    """Say in a few words what the result of an item was."""
    if "why" in item:
        return item["why"]
    if "checks" in item:
        ends = Counter(status for status, _ in item["checks"].values())
        return ", ".join(f"{n} {end}" for end, n in sorted(ends.items()))
    if "figures" in item:
        return "; ".join(figures(item["figures"]))
    where = f"on {', '.join(item['devices'])}: " if item.get("devices") else ""
    return where + item.get("said", item.get("last", ""))


def figures(found: dict) -> Iterator[str]:
    """Yield what was measured, each with its unit."""
    for kind, value in found.items():
        if isinstance(value, dict) and "step_ms" in value:
            text = f"{kind}: {value['step_ms']:.3g} ms a step"
            if kind != "float32":
                text += f", loss {value['off_float32']:+.2%}"
            yield text
    for what, size in found.get("allocated", {}).items():
        yield f"{what} {size / 1e6:.1f} MB (formula {found['formula'][what] / 1e6:.1f})"
    for what in "peak_allocated", "peak_reserved":
        if what in found:
            yield f"{what.replace('_', ' ')} {found[what] / 1e6:.1f} MB"
    if "ratio" in found:
        spread = f"{found['ratio_min']:.3f} to {found['ratio_max']:.3f}"
        yield (
            f"{found['step_ms_without']:.3g} ms a step, with the guard "
            f"{found['step_ms_with']:.3g} ms: {found['ratio']:.3f} ({spread}, "
            f"{found['pairs']} pairs), {found['backend']}"
        )


class Gpu(Status):
    """The sentence and the table."""

    heads = ("group", "end", "what was played", "what came out")
    widths = (9, 9, 24, 58)

    def run(self) -> list[nodes.Node]:
        """Build the sentence and the table from the file as it is now."""
        self.env.note_dependency(DATA)
        try:
            data = load(Path(self.env.srcdir, DATA))
            if data is None:
                return [nodes.paragraph(NONE, NONE, classes=["gpu-none"])]
            text = sentence(data)
            rows = [
                [i["group"], i["outcome"], i["name"], told(i)] for i in data["items"]
            ]
        except (LookupError, TypeError, ValueError) as error:
            raise self.error(f"{DATA}: {error}") from None
        about = nodes.paragraph(text, text, classes=["gpu-machine"])
        return [about, self.table(rows)]


def setup(app: Sphinx) -> None:
    """Add the directive."""
    app.add_directive("gpu", Gpu)
