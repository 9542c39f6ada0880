"""What a page costs a reader, and that nothing is missed of what was left out."""

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
KIB = 1024
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
STYLES = """
(names) => [...document.body.querySelectorAll("*")].flatMap((element) =>
  ["", "::before", "::after"].flatMap((part) => {
    const style = getComputedStyle(element, part || null);
    if (part && style.content === "none") return [];
    const values = names.map((name) => style.getPropertyValue(name));
    return [`${element.tagName}.${element.getAttribute("class")}${part} ${values}`];
  }))
"""
SWAP = """
async (css) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.querySelector('link[href*="/all.css"]').replaceWith(style);
  await document.fonts.load('900 1em "Font Awesome 6 Free"', "\\uf0c9");
}
"""
SHIFT = """
new Promise((done) => {
  let sum = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) sum += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(sum))));
})
"""


class Load:
    """What a page fetched: the bytes of each address over the wire, uncompressed."""

    def __init__(self, browser, width: int = 1280, height: int = 800):
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.tab = self.context.new_page()
        self.cdp = self.context.new_cdp_session(self.tab)
        self.cdp.send("Network.enable")
        self.cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
        self.urls, self.sizes = {}, {}
        self.cdp.on("Network.requestWillBeSent", self.ask)
        self.cdp.on("Network.loadingFinished", self.take)

    def ask(self, event) -> None:
        self.urls[event["requestId"]] = event["request"]["url"]

    def take(self, event) -> None:
        if self.urls.get(event["requestId"], "").startswith("http"):
            self.sizes[event["requestId"]] = event["encodedDataLength"]

    def open(self, url: str) -> dict[str, int]:
        self.urls.clear(), self.sizes.clear()
        self.tab.goto(url, wait_until="load")
        return {self.urls[request]: size for request, size in self.sizes.items()}


@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_is_light_and_does_not_jump(browser, http, pages, width):
    """300 KiB for a page of prose, 400 for a notebook, 20 requests, nothing moves."""
    load, heavy = Load(browser, width), []
    for page in pages:
        got = load.open(f"{http}/{page}.html")
        total, shift = sum(got.values()), load.tab.evaluate(SHIFT)
        most = 300 if page.startswith("book/") else 400
        if total > most * KIB or len(got) > 20 or shift > 0.02:
            parts = sorted(((size, url[len(http) :]) for url, size in got.items()))
            heavy.append(f"{page}: {total / KIB:.0f} KiB, shift {shift:.3f}, {parts}")
    load.context.close()
    assert not heavy, "\n".join(heavy)
    assert total > 50 * KIB  # otherwise it measured nothing


def test_one_style_sheet_blocks_and_no_script_does(site, pages):
    """Before the first paint comes the page itself and one style sheet."""
    for page in pages:
        tree = BeautifulSoup((site / f"{page}.html").read_text("utf8"), "html.parser")
        sheets = [tag["href"] for tag in tree.select("head link[rel=stylesheet]")]
        rest = [
            s
            for s in sheets
            if not re.search(r"/(all|clinic|quiz|course|diagnose|kit)\.css", s)
        ]
        assert rest == [] and len(sheets) <= 3, page
        assert tree.select("script[src]:not([defer])") == [], page


def test_a_variable_that_only_a_pages_own_style_reads_is_kept(monkeypatch):
    """A page that an earlier build made lighter reads rank colours there."""
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    from purge import purge
    from uses import Uses

    uses = Uses()
    uses.add_page("<style>svg .s0 { fill: var(--rank-6) }</style><p>x</p>")
    assert purge(":root { --rank-6: red; --idle: 1 }", uses) == ":root{--rank-6:red}"


@pytest.mark.parametrize(
    ("theme", "width", "media"),
    [("light", 1280, "screen"), ("dark", 390, "screen"), ("light", 800, "print")],
)
def test_no_page_misses_a_rule_that_was_left_out(
    browser, site, pages, theme, width, media
):
    """Every element looks as it does with the themes' whole style sheets."""
    whole = (site.resolve().parent / ".doctrees" / "whole.css").read_text("utf8")
    slim_css = (site / "_static" / "all.css").read_text("utf8")
    assert len(slim_css) < len(whole) / 4
    fonts = re.compile(r"@font-face\s*\{[^}]*\}")  # the icons in use, in both
    whole = "".join([fonts.sub("", whole), *fonts.findall(slim_css)])
    viewport = {"width": width, "height": 800}
    tab = browser.new_page(viewport=viewport, color_scheme=theme)
    tab.emulate_media(media=media)
    # Each page once wide and light; of the other two settings, every second page.
    every = 1 if width == 1280 else 2
    for page in [*pages, "search", "genindex"][::every]:
        tab.goto(f"{site.as_uri()}/{page}.html")
        tab.add_style_tag(content=STILL)
        tab.evaluate("document.fonts.ready.then(() => true)")
        slim = tab.evaluate(STYLES, SHOWN.split())
        tab.evaluate(SWAP, whole)
        full = tab.evaluate(STYLES, SHOWN.split())
        assert "rgb" in slim[0]  # it compares values, not nothing
        other = [pair for pair in zip(slim, full, strict=True) if pair[0] != pair[1]]
        assert other[:2] == [], page
    tab.close()
