"""An explorable's JavaScript, in the forms that its hosts can load.

A topic's ``figure.js`` is an ES module that imports from ``kit/kit.js``, which only
lists the files beside it in an order in which each needs those before it. In
JupyterLab, anywidget needs a single module without imports. A page that is opened from
a folder cannot load modules at all, so it gets classic scripts: ``kit.js`` once, then
one per explorable. Comments and indentation are left out.

A constant that Python and JavaScript both need stands in Python. ``import { MOST as TOP
} from "./sums.py"`` takes it from there, and becomes ``const TOP = 16``.
"""

import dataclasses
import importlib
import json
import posixpath
import re
from pathlib import Path
from typing import Any

KIT = Path(__file__).parent
TOPICS = KIT.parent
IMPORT = re.compile(r'^import (\{[^}]*\}) from "([./\w]+)";$\n?', re.MULTILINE)
CONSTANTS = re.compile(r'^import \{([^}]*)\} from "([./\w]+)\.py";$', re.MULTILINE)
EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function|const|let) (\w+))", re.MULTILINE
)
PART = re.compile(r'^export \* from "\./(\w+\.js)";$', re.MULTILINE)
NO_KERNEL = """export const LOST = "", BUSY = "";
export const isLost = () => false;
export const keepModels = () => {};
"""
DULL = re.compile(r"^[ \t]*//.*\n|[ \t]+// .*|^[ \t]+|^\n", re.MULTILINE)


def names() -> list[str]:
    """Return the names of the topics that have a figure."""
    return sorted(path.parent.name for path in TOPICS.glob("*/figure.js"))


def figure(name: str) -> str:
    """Read a topic's ``figure.js``.

    Raises:
        LookupError: if there is no such figure.
        ValueError: if it imports or exports in a form that a page cannot load.
    """
    path = TOPICS / name / "figure.js"
    if not path.is_file():
        raise LookupError(f"no explorable {name}: there are {', '.join(names())}")
    text = read(path)
    if {file for _, file in IMPORT.findall(text)} - {"../kit/kit.js"}:
        raise ValueError(f"{name}/figure.js: import from ../kit/kit.js only")
    return text


def constants(folder: str, names: str, file: str) -> str:
    """Return JavaScript that defines constants of a Python module.

    Args:
        folder: of the script that imports them, below ``topics``.
        names: of the constants, as an import lists them.
        file: the module, as seen from that folder: "./sums", "../../base/svg".

    >>> constants("topology", "MOST, NAMED as FEW", "./figure")
    'const MOST = 16, FEW = 4;'
    """
    # A figure's own module is only half imported when its class asks for the script;
    # its constants stand above the class.
    path = posixpath.normpath(f"allranks/topics/{folder}/{file}")
    module = importlib.import_module(path.replace("/", "."))
    pairs = [name.split(" as ") for name in names.replace("\n", " ").split(",")]
    values = [(pair[-1].strip(), getattr(module, pair[0].strip())) for pair in pairs]
    return f"const {', '.join(f'{name} = {_literal(it)}' for name, it in values)};"


def _literal(value: Any) -> str:
    """Write a value in JavaScript; tuples become lists, and dataclasses objects."""
    if isinstance(value, re.Pattern):
        return f"new RegExp({_literal(value.pattern)})"
    compact = {"ensure_ascii": False, "separators": (",", ":")}
    return json.dumps(value, default=dataclasses.asdict, **compact)


def read(path: Path) -> str:
    """Read a module, and refuse what the functions below could not convert.

    What it imports from Python stands in it as values.
    """
    folder, text = path.parent.name, path.read_text("utf8")
    text = CONSTANTS.sub(lambda match: constants(folder, *match.groups()), text)
    rest = EXPORT.sub("", IMPORT.sub("", text)).replace("export default ", "", 1)
    if re.search(r"^(?:import|export)\b", rest, re.MULTILINE):
        raise ValueError(f"{folder}/{path.name}: export names only")
    return text


def module(name: str) -> str:
    """Return an explorable as one ES module without imports, which anywidget loads."""
    text = IMPORT.sub(r"const \1 = allRanks.kit;\n", EXPORT.sub("", figure(name)))
    return kit_script() + DULL.sub("", text)


def kit_script(kernel: bool = True) -> str:
    """Return the kit as a classic script, which defines ``allRanks.kit``.

    Args:
        kernel: whether there may be one; a page needs nothing of ``kernel.js``.
    """
    parts = [
        NO_KERNEL if file == "kernel.js" and not kernel else read(KIT / file)
        for file in PART.findall((KIT / "kit.js").read_text("utf8"))
    ]
    exported = ", ".join(name for part in parts for name in EXPORT.findall(part))
    body = "\n".join(EXPORT.sub("", IMPORT.sub("", part)) for part in parts)
    body += f"\nreturn {{ {exported} }};"
    return DULL.sub("", f"const allRanks = {{ kit: (() => {{\n{body}\n}})() }};\n")


def script(name: str) -> str:
    """Return an explorable as a classic script, which defines ``allRanks.NAME``."""
    text = IMPORT.sub(r"const \1 = allRanks.kit;\n", EXPORT.sub("", figure(name)))
    text = text.replace("export default ", f"allRanks.{name} = ", 1)
    return DULL.sub("", f"(() => {{\n{text}\n}})();\n")
