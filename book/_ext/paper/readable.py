"""A page's HTML for paper, where nobody can click: no controls, nothing folded.

Controls become signs, folded parts are opened, and variables that a style sheet would
resolve become plain colors. Parts with the class ``no-paper`` are left out.
"""

import re
from pathlib import Path

from bs4 import BeautifulSoup, Tag

STATIC = Path(__file__).resolve().parents[2] / "_static"
OURS = re.compile(r"(--(?:rank|diff)-\w+): (#[0-9a-f]+)")  # light mode comes first
HAS_CONTROLS = "On the web and in JupyterLab this figure has controls."
GONE = {"script", "style", "template", "button", "link", "nav"}
GONE |= {"progress", "meter", "datalist"}
NOT_ON_PAPER = {"no-paper", "sd-summary-state-marker"}  # classes
SIGNS = {"radio": "○", "checkbox": "☐"}
BLANKS = ("number", "text")
PLAIN = {"form": "div", "fieldset": "div", "legend": "p", "label": "span"}
PLAIN |= {"output": "span", "noscript": "div"}
DEAD = re.compile(
    r"on\w+|tabindex|contenteditable|data-(?!number$).+|aria-(live|controls|pressed)"
)
TOGGLES = {"dropdown", "toggle", "toggle-shown", "tag_hide-input", "tag_hide-output"}
VAR = re.compile(r"var\((--[\w-]+)(?:,\s*((?:[^()]|\([^()]*\))+))?\)")
COLORS = {
    "--pst-color-text-base": "#1d2430",
    "--pst-color-text-muted": "#56606e",
    "--pst-color-background": "#ffffff",
    "--pst-color-on-background": "#ffffff",
    "--pst-color-surface": "#f4f5f7",
    "--pst-color-border": "#c3c9d2",
    "--pst-color-link": "#0f5bc4",
    "--pst-color-primary": "#0f5bc4",
}
for name, value in OURS.findall((STATIC / "book.css").read_text("utf8")):
    COLORS.setdefault(name, value)
TOKENS = {"gi": "--diff-in", "gd": "--diff-out"}
TOKENS |= {f"g-Rank{rank}": f"--rank-{rank}" for rank in range(8)}


def color(match: re.Match) -> str:
    """Return the color that a CSS variable has in light mode."""
    return COLORS.get(match[1]) or match[2] or "currentColor"


def parse(page: str) -> BeautifulSoup:
    """Parse a page, and restore the capitals of SVG names that the parser drops."""
    tree = BeautifulSoup(page, "html.parser")
    found = re.findall(r"(?<=[<\s])([a-z]+[A-Z][A-Za-z]*)(?=[=\s>])", page)
    names = {name.lower(): name for name in found}
    for svg in tree("svg"):
        for tag in svg, *svg(True):
            tag.name = names.get(tag.name, tag.name)
            tag.attrs = {names.get(key, key): tag[key] for key in tag.attrs}
    return tree


def goes(tag: Tag) -> bool:
    """Tell whether a tag has no place on paper."""
    never = NOT_ON_PAPER.intersection(tag.get_attribute_list("class"))
    return tag.name in GONE or "hidden" in tag.attrs or bool(never)


def readable(body: str) -> str:
    """Return the body of a page as paper needs it, in well-formed XHTML."""
    tree = parse(VAR.sub(color, body))
    for tag in tree(goes):
        tag.decompose()
    for tag in tree("figure", "explorable"):
        note = tree.new_tag("p", attrs={"class": "paper-note"})
        note.string = HAS_CONTROLS
        tag.append(note)
    for tag in tree("details"):
        open_up(tree, tag)
    for tag in tree(["input", "select", "textarea"]):
        tag.replace_with(sign(tree, tag))
    for tag in tree(list(PLAIN)):
        tag.name = PLAIN[tag.name]
        tag.attrs.pop("for", None)
    for tag in tree(True):
        tag.attrs = {key: tag[key] for key in tag.attrs if not DEAD.fullmatch(key)}
        if TOGGLES & set(tag.get_attribute_list("class")):
            tag["class"] = [name for name in tag["class"] if name not in TOGGLES]
        if tag.get("class") == []:
            del tag["class"]
    unique_ids(tree)
    return str(tree)


def open_up(tree: BeautifulSoup, details: Tag) -> None:
    """Unfold a folded part: its summary becomes a heading line."""
    details.name = "div"
    details.attrs.pop("open", None)
    details["class"] = [*details.get_attribute_list("class"), "unfolded"]
    details["class"] = [name for name in details["class"] if name]
    if summary := details.find("summary", recursive=False):
        summary.name = "p"
        summary.attrs = {"class": "summary"}


def sign(tree: BeautifulSoup, control: Tag) -> Tag:
    """Return what a control becomes on paper: a circle, a box, a line to write on."""
    mark = tree.new_tag("span")
    kind = control.get("type", "text")
    if control.name == "select":
        chosen = control.find("option", selected=True) or control.find("option")
        mark.string = chosen.get_text() if chosen else ""
    elif kind in SIGNS:
        mark["class"], mark.string = "sign", f"{SIGNS[kind]} "
    elif kind in BLANKS:
        mark["class"], mark.string = "blank", "______"
    return mark


def unique_ids(tree: BeautifulSoup) -> None:
    """Drop each id that an earlier element has too, as links lead to the first one."""
    seen = set()
    for tag in tree(id=True):
        if tag["id"] in seen:
            del tag["id"]
        else:
            seen.add(tag["id"])


def properties(page: str) -> str:
    """List the properties that EPUB 3 asks for, by what the page contains."""
    return " ".join(name for name in ("mathml", "svg") if f"<{name[:4]}" in page)
