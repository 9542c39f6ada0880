"""What a page costs a reader, and that nothing is missed of what was left out."""

import re

import pytest
from bs4 import BeautifulSoup

KIB = 1024
STILL = (
    "*, ::before, ::after { animation: none !important; transition: none !important }"
)
STYLES = """
() => [...document.body.querySelectorAll("*")].flatMap((element) =>
  ["", "::before", "::after"].flatMap((part) => {
    const style = getComputedStyle(element, part || null);
    if (part && style.content === "none") return [];
    let hash = 0;
    for (const c of style.cssText) hash = (hash * 31 + c.charCodeAt(0)) | 0;
    return [`${element.tagName}.${element.getAttribute("class")}${part} ${hash}`];
  }))
"""
SWAP = """
(css) => {
  const style = document.createElement("style");
  style.textContent = css;
  document.querySelector('link[href*="/all.css"]').replaceWith(style);
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
        self.tab.goto(url, wait_until="networkidle")
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
        rest = [s for s in sheets if not re.search(r"/(all|quiz|course|kit)\.css", s)]
        assert rest == [] and len(sheets) <= 3, page
        assert tree.select("script[src]:not([defer])") == [], page


@pytest.mark.parametrize(
    ("theme", "width", "media"),
    [("light", 1280, "screen"), ("dark", 390, "screen"), ("light", 800, "print")],
)
def test_no_page_misses_a_rule_that_was_left_out(
    browser, site, pages, theme, width, media
):
    """Every element looks as it does with the themes' whole style sheets."""
    whole = (site.resolve().parent / ".doctrees" / "whole.css").read_text("utf8")
    size = (site / "_static" / "all.css").stat().st_size
    assert size < len(whole) / 4
    viewport = {"width": width, "height": 800}
    tab = browser.new_page(viewport=viewport, color_scheme=theme)
    tab.emulate_media(media=media)
    for page in [*pages, "search", "genindex"]:
        tab.goto(f"{site.as_uri()}/{page}.html")
        tab.add_style_tag(content=STILL)
        slim = tab.evaluate(STYLES)
        tab.evaluate(SWAP, whole)
        assert slim == tab.evaluate(STYLES), page
    tab.close()
