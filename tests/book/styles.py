"""Check that pages look the same with our few rules as with the themes' whole sheets.

Two elements that no selector can tell apart, neither by themselves nor by their
ancestors and neighbours, get the same rules. So one element of each such kind in the
whole book is compared: light and wide, dark and narrow, and printed.
"""

import re
from pathlib import Path

from playwright.sync_api import Page

SHOWN = """
display position float clear visibility opacity order z-index top right bottom left
width height min-width max-width max-height margin-top margin-right margin-bottom
margin-left padding-top padding-right padding-bottom padding-left overflow-x overflow-y
border-top-width border-right-width border-bottom-width border-left-width
border-top-style border-left-style border-top-color border-right-color
border-bottom-color border-left-color border-top-left-radius color background-color
background-image box-shadow outline-style outline-width font-family font-size font-style
font-weight line-height letter-spacing text-align text-decoration-line text-transform
text-wrap vertical-align white-space overflow-wrap list-style-type flex-direction
flex-grow flex-basis justify-content align-items row-gap column-gap transform cursor
content fill stroke table-layout break-inside
"""
SETTINGS = [
    ("light", 1280, "screen"),
    ("dark", 390, "screen"),
    ("light", 800, "print"),
]
# Choose one element of each kind, by all that the whole sheet's selectors ask for.
CHOOSE = """
([attributes, ids, known, names]) => {
  const seen = new Set(known.split(" ")), before = seen.size;
  // Of an address, a size and a tip, rules ask for the beginning at most.
  const begun = ["href", "title", "width"];
  const asked = (name, value) => begun.includes(name) ? value.slice(0, 1) : value;
  const once = (answer, answers = new Map()) => (e) => {
    if (!answers.has(e)) answers.set(e, answer(e));
    return answers.get(e);
  };
  const own = once((e) => [e.tagName, ids.includes(e.id) ? e.id : "",
    ...attributes.map((name) => asked(name, e.getAttribute(name) ?? ""))].join(" "));
  const hash = (text) => {
    let a = 0xdeadbeef, b = 0x41c6ce57;
    for (let i = 0; i < text.length; i++) {
      a = Math.imul(a ^ text.charCodeAt(i), 2654435761);
      b = Math.imul(b ^ text.charCodeAt(i), 1597334677);
    }
    return `${(a >>> 0).toString(36)}${(b >>> 0).toString(36)}`;
  };
  const inCode = once((e) => e.tagName === "PRE" ||
    Boolean(e.parentElement && inCode(e.parentElement)));
  const place = (e) => {
    if (!e.parentElement) return "";
    const first = !e.previousElementSibling, last = !e.nextElementSibling;
    if (inCode(e) && !first) return ""; // the words of a listing: thousands
    const all = [...e.parentElement.children], at = all.indexOf(e);
    const before = all.slice(Math.max(0, at - 2), at).map(own);
    return [first, last, at % 2, ...before].join();
  };
  const kind = once((e) => { // as a short code: texts would hold all ancestors' texts
    const inside = new Set(inCode(e) ? [] : [...e.children].map(own));
    const self = `${own(e)}|${place(e)}|${!e.firstChild}|${[...inside]}`;
    return hash(`${self}<${e.parentElement ? kind(e.parentElement) : ""}`);
  });
  // A figure draws itself anew at each width, so what is in it can't be compared.
  const drawn = (e) => e.parentElement.closest(".x-stage, .x-below");
  const chosen = [...document.body.querySelectorAll("*")].filter((e) => {
    if (drawn(e)) return false;
    return !seen.has(kind(e)) && seen.add(kind(e));
  });
  const looks = () => chosen.flatMap((element) =>
    ["", "::before", "::after"].flatMap((part) => {
      const style = getComputedStyle(element, part || null);
      if (part && style.content === "none") return [];
      const values = names.map((name) => style.getPropertyValue(name));
      return [`${element.tagName}.${element.getAttribute("class")}${part} ${values}`];
    }));
  const few = {};
  window.remember = (setting) => { few[setting] = looks(); };
  window.compare = (setting) => {
    const slim = few[setting], full = looks();
    if (slim.length !== full.length) return [`${slim.length} != ${full.length}`];
    if (!slim[0].includes("rgb")) return ["nothing was compared"];
    const other = slim.map((look, i) => [look, full[i]]).filter(([a, b]) => a !== b);
    return other.slice(0, 2);
  };
  return [...seen].slice(before).join(" ");
}
"""
# After a change of size, scripts get two frames to react.
SETTLE = """
(theme) => {
  document.documentElement.dataset.theme = theme;
  return new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
}
"""
SWAP = """
async (css) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.querySelector('link[href*="/all.css"]').replaceWith(style);
  await document.fonts.load('900 1em "Font Awesome 6 Free"', "\\uf0c9");
}
"""


class Styles:
    """The themes' whole style sheet, and the kinds of element compared so far."""

    def __init__(self, site: Path):
        whole = (site.resolve().parent / ".doctrees" / "whole.css").read_text("utf8")
        ours = (site / "_static" / "all.css").read_text("utf8")
        self.saving = len(whole) / len(ours)
        fonts = re.compile(r"@font-face\s*\{[^}]*\}")  # icons: ours for both
        self.css = "".join([fonts.sub("", whole), *fonts.findall(ours)])
        rules = re.sub(r"\{[^{}]*\}", "{}", self.css)
        self.attributes = sorted({"class", *re.findall(r"\[([\w-]+)", rules)})
        self.ids = sorted(set(re.findall(r"#([A-Za-z][\w-]*)", rules)))
        self.known = ""  # one text, as a list of thousands takes long to send

    def look(self, page: Page) -> list[str]:
        """Return what looks different on an open page with all rules, which stay on."""
        page.evaluate("document.fonts.ready.then(() => true)")
        chosen = [self.attributes, self.ids, self.known, SHOWN.split()]
        new = page.evaluate(CHOOSE, chosen)
        if not new:
            return []
        self.known += f" {new}"
        for setting in SETTINGS:
            show(page, setting)
            page.evaluate("(setting) => remember(setting)", str(setting))
        page.evaluate(SWAP, self.css)
        found = []
        for setting in reversed(SETTINGS):  # the last one is shown already
            show(page, setting)
            other = page.evaluate("(setting) => compare(setting)", str(setting))
            found += [f"{setting}: {pair}" for pair in other]
        return found


def show(page: Page, setting: tuple[str, int, str]) -> None:
    """Show a page with a theme, a width and a medium."""
    theme, width, media = setting
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(media=media, color_scheme=theme)
    page.evaluate(SETTLE, theme)
