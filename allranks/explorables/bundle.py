"""An explorable's JavaScript, in the forms that its hosts can load.

``NAME.js`` is an ES module that imports from ``kit.js``. In JupyterLab, anywidget wants
one module with nothing to import. A page opened from a folder cannot load modules at
all, so it gets classic scripts: ``kit.js`` once, then one per explorable. Comments and
indentation stay behind.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./kit\.js";$', re.MULTILINE)
EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function|const|let) (\w+))", re.MULTILINE
)
DULL = re.compile(r"^[ \t]*//.*\n|^[ \t]+|^\n", re.MULTILINE)


def source(name: str) -> str:
    """Read a module, and refuse what could not be taken apart below.

    Raises:
        LookupError: there is no such module.
        ValueError: it imports or exports in a form that a page's host does not know.
    """
    path = FOLDER / f"{name}.js"
    if not path.is_file():
        known = sorted(p.stem for p in FOLDER.glob("*.js") if p.stem != "kit")
        raise LookupError(f"no explorable {name}: there are {', '.join(known)}")
    text = path.read_text("utf8")
    rest = EXPORT.sub("", IMPORT.sub("", text)).replace("export default ", "", 1)
    if re.search(r"^(?:import|export)\b", rest, re.MULTILINE):
        raise ValueError(f"{path.name}: import from ./kit.js only, export names only")
    return text


def module(name: str) -> str:
    """One ES module with nothing to import: what anywidget loads."""
    kit = EXPORT.sub("", source("kit"))
    return DULL.sub("", kit + IMPORT.sub("", EXPORT.sub("", source(name))))


def kit_script() -> str:
    """The kit as a classic script: it makes ``allRanks.kit``."""
    kit = source("kit")
    names = ", ".join(EXPORT.findall(kit))
    body = f"{EXPORT.sub('', kit)}\nreturn {{ {names} }};"
    return DULL.sub("", f"const allRanks = {{ kit: (() => {{\n{body}\n}})() }};\n")


def script(name: str) -> str:
    """An explorable as a classic script: it makes ``allRanks.NAME``."""
    text = IMPORT.sub(r"const \1 = allRanks.kit;", EXPORT.sub("", source(name)))
    text = text.replace("export default ", f"allRanks.{name} = ", 1)
    return DULL.sub("", f"(() => {{\n{text}\n}})();\n")
