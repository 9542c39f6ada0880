"""An explorable's JavaScript, in the forms that its hosts can load.

``NAME.js`` is an ES module that imports from ``kit.js``, which only lists the files of
``kit/`` in an order in which each needs those before it. In JupyterLab, anywidget needs
a single module without imports. A page that is opened from a folder cannot load modules
at all, so it gets classic scripts: ``kit.js`` once, then one per explorable. Comments
and indentation are left out.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$\n?', re.MULTILINE)
EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function|const|let) (\w+))", re.MULTILINE
)
PART = re.compile(r'^export \* from "\./(kit/\w+\.js)";$', re.MULTILINE)
NO_KERNEL = """export const LOST = "", BUSY = "";
export const isLost = () => false;
export const keepModels = () => {};
"""
DULL = re.compile(r"^[ \t]*//.*\n|^[ \t]+|^\n", re.MULTILINE)


def source(name: str) -> str:
    """Read a module, and refuse what the functions below could not convert.

    Raises:
        LookupError: if there is no such module.
        ValueError: if it imports or exports in a form that a page cannot load.
    """
    path = FOLDER / f"{name}.js"
    if not path.is_file():
        known = sorted(p.stem for p in FOLDER.glob("*.js") if p.stem != "kit")
        raise LookupError(f"no explorable {name}: there are {', '.join(known)}")
    text = path.read_text("utf8")
    rest = PART.sub("", EXPORT.sub("", IMPORT.sub("", text)))
    rest = rest.replace("export default ", "", 1)
    alien = {file for _, file in IMPORT.findall(text)} - {"kit"}
    if (alien and not name.startswith("kit/")) or re.search(
        r"^(?:import|export)\b", rest, re.MULTILINE
    ):
        raise ValueError(f"{path.name}: import from ./kit.js only, export names only")
    return text


def module(name: str) -> str:
    """Return an explorable as one ES module without imports, which anywidget loads."""
    text = IMPORT.sub(r"const \1 = allRanks.kit;\n", EXPORT.sub("", source(name)))
    return kit_script() + DULL.sub("", text)


def kit_script(kernel: bool = True) -> str:
    """Return the kit as a classic script, which defines ``allRanks.kit``.

    Args:
        kernel: whether there may be one; a page needs nothing of ``kit/kernel.js``.
    """
    files = [part[:-3] for part in PART.findall(source("kit"))]
    parts = [
        NO_KERNEL if file == "kit/kernel" and not kernel else source(file)
        for file in files
    ]
    names = ", ".join(name for part in parts for name in EXPORT.findall(part))
    body = "\n".join(EXPORT.sub("", IMPORT.sub("", part)) for part in parts)
    body += f"\nreturn {{ {names} }};"
    return DULL.sub("", f"const allRanks = {{ kit: (() => {{\n{body}\n}})() }};\n")


def script(name: str) -> str:
    """Return an explorable as a classic script, which defines ``allRanks.NAME``."""
    text = IMPORT.sub(r"const \1 = allRanks.kit;\n", EXPORT.sub("", source(name)))
    text = text.replace("export default ", f"allRanks.{name} = ", 1)
    return DULL.sub("", f"(() => {{\n{text}\n}})();\n")
