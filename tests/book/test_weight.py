"""A page is light, and misses nothing of the rules that its style sheet leaves out."""

import re

import pytest

from book._ext.weight.purge import purge
from book._ext.weight.uses import Uses
from tests.book.weight import KIB, packed, too_heavy, weigh

STILL = (
    "*, ::before, ::after { animation: none !important; transition: none !important }"
)
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
# In one look: what each element and each text before or after it looks like.
SETTINGS = [
    ("light", 1280, "screen"),
    ("dark", 390, "screen"),
    ("light", 800, "print"),
]
COMPARE = """
(names) => {
  const looks = () => [...document.body.querySelectorAll("*")].flatMap((element) =>
    ["", "::before", "::after"].flatMap((part) => {
      const style = getComputedStyle(element, part || null);
      if (part && style.content === "none") return [];
      const values = names.map((name) => style.getPropertyValue(name));
      return [`${element.tagName}.${element.getAttribute("class")}${part} ${values}`];
    }));
  const seen = {};
  window.remember = (setting) => { seen[setting] = looks(); };
  window.compare = (setting) => {
    const slim = seen[setting], full = looks();
    if (slim.length !== full.length) return [`${slim.length} != ${full.length}`];
    if (!slim[0].includes("rgb")) return ["nothing was compared"];
    const other = slim.map((look, i) => [look, full[i]]).filter(([a, b]) => a !== b);
    return other.slice(0, 2);
  };
}
"""
# Resized, scripts have two frames to follow.
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


def test_a_variable_that_only_a_pages_own_style_reads_is_kept():
    """A page may bring a style of its own, such as one in a notebook's output."""
    uses = Uses()
    uses.add_page("<style>svg .s0 { fill: var(--rank-6) }</style><p>x</p>")
    assert purge(":root { --rank-6: red; --idle: 1 }", uses) == ":root{--rank-6:red}"


@pytest.mark.parametrize("kind", ["intro", "ch", "app", "notebooks"])
def test_the_heaviest_page_of_each_kind_is_light(browser, site, pages, kind):
    """As browsers get it, compressed, in few files. ``make bench`` weighs all pages."""
    prefix = "notebooks/" if kind == "notebooks" else f"book/{kind}"
    same = [page for page in pages if page.startswith(prefix)]
    page = max(same, key=lambda page: packed(site / f"{page}.html"))
    files = weigh(browser, site, page)
    assert {f"{page}.html", "_static/all.css", "_static/all.js"} <= files.keys()
    assert sum(files.values()) > 30 * KIB  # it weighed something
    assert not too_heavy(page, sum(files.values()), len(files)), files


def test_a_page_that_is_too_heavy_is_named_with_its_figure():
    """Above 90 KiB of prose, 120 of a notebook, or 20 files."""
    assert not too_heavy("book/a", 90 * KIB, 20)
    assert not too_heavy("notebooks/a", 120 * KIB, 20)
    assert too_heavy("book/a", 91 * KIB, 1) == "book/a weighs 91.0 KiB, more than 90"
    assert "121.0 KiB, more than 120" in too_heavy("notebooks/a", 121 * KIB, 1)
    assert too_heavy("book/a", KIB, 21) == "book/a loads 21 files, more than 20"


@pytest.mark.timeout(900)  # every page, in three settings, on a busy machine too
def test_no_page_misses_a_rule_that_was_left_out(browser, site, pages):
    """Every element looks as it does with the themes' whole style sheets.

    Light and wide, dark and narrow, and printed; the latter two on every second page.
    """
    whole = (site.resolve().parent / ".doctrees" / "whole.css").read_text("utf8")
    slim_css = (site / "_static" / "all.css").read_text("utf8")
    assert len(slim_css) < len(whole) / 4
    fonts = re.compile(r"@font-face\s*\{[^}]*\}")  # the icons in use, in both
    whole = "".join([fonts.sub("", whole), *fonts.findall(slim_css)])
    tab, shown = browser.new_page(), None

    def show(setting: tuple[str, int, str]) -> None:
        nonlocal shown
        if setting != shown:
            theme, width, media = shown = setting
            tab.set_viewport_size({"width": width, "height": 800})
            tab.emulate_media(media=media, color_scheme=theme)
            tab.evaluate(SETTLE, theme)

    for number, page in enumerate([*pages, "search", "genindex"]):
        settings = SETTINGS[: 1 if number % 2 else 3]
        tab.goto(f"{site.as_uri()}/{page}.html")
        tab.add_style_tag(content=STILL)
        tab.evaluate("document.fonts.ready.then(() => true)")
        tab.evaluate(COMPARE, SHOWN.split())
        for setting in settings:
            show(setting)
            tab.evaluate("(setting) => remember(setting)", str(setting))
        tab.evaluate(SWAP, whole)
        for setting in reversed(settings):  # so that the next page begins as this one
            show(setting)
            other = tab.evaluate("(setting) => compare(setting)", str(setting))
            assert other == [], (page, setting)
    tab.close()
