"""A chapter's first screen is its picture, whole and legible in any font."""

import pytest

from allranks import openings
from tests.book.test_extensions import build

__all__ = ["build"]  # the fixture

SIZES = {390: 844, 1280: 800}
FONTS = ["", "DejaVu Sans", "DejaVu Serif"]  # the page's own, and two that are wider
LOOK = """
(font) => {
  const figure = document.querySelector("figure.opening"), found = [];
  figure.style.setProperty("font-family", font);
  const shown = [...figure.querySelectorAll("svg")].filter((e) => e.checkVisibility());
  if (shown.length !== 1) return [`${shown.length} drawings`];
  const [svg] = shown, whole = svg.getBoundingClientRect();
  if (font) svg.style.fontFamily = font;
  const column = figure.parentElement.getBoundingClientRect();
  if (whole.width < 0.85 * Math.min(column.width, 480)) found.push("narrow");
  if (innerWidth > 1000 && whole.width < 0.85 * column.width) found.push("narrow");
  if (scrollY + whole.top > innerHeight / 3) found.push(`begins at ${whole.top}`);
  const scale = whole.width / svg.viewBox.baseVal.width;
  const boxes = [...svg.querySelectorAll("rect")].map((e) => e.getBoundingClientRect());
  const texts = [...svg.querySelectorAll("text")];
  for (const [i, text] of texts.entries()) {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    const name = text.textContent, middle = [(left + right) / 2, (top + bottom) / 2];
    if (left < whole.left - 1 || right > whole.right + 1) found.push(`cut: ${name}`);
    if (parseFloat(text.getAttribute("font-size")) * scale < 12)
      found.push(`small: ${name}`);
    const [around] = boxes
      .filter((b) => b.left < middle[0] && b.right > middle[0])
      .filter((b) => b.top < middle[1] && b.bottom > middle[1])
      .sort((a, b) => a.width - b.width);
    if (around && text.getAttribute("text-anchor") === "middle") {
      if (left < around.left || right > around.right) found.push(`juts out: ${name}`);
    }
    for (const other of texts.slice(0, i)) {
      const o = other.getBoundingClientRect();
      if (o.left < right && left < o.right && o.top < bottom - 4 && top < o.bottom - 4)
        found.push(`${name} on ${other.textContent}`);
    }
  }
  return texts.length > 9 ? found : ["no texts"];
}
"""


@pytest.fixture(scope="module")
def tabs(browser):
    """Yield a window of a phone and one of a laptop."""
    sizes = [{"width": width, "height": height} for width, height in SIZES.items()]
    tabs = [browser.new_page(viewport=size) for size in sizes]
    yield tabs
    for tab in tabs:
        tab.close()


@pytest.mark.parametrize("name", openings.NAMES)
def test_it_is_whole_and_legible_in_any_font(tabs, site, name):
    """No text is cut, small, or on another, whatever font a reader's system has."""
    found = []
    for tab in tabs:
        tab.goto(f"{site.as_uri()}/book/{name}.html")
        for font in FONTS:
            look = tab.evaluate(LOOK, font)
            found += [f"{tab.viewport_size['width']} px, {font}: {t}" for t in look]
    assert not found, "\n".join(found)


def test_a_wrong_name_or_no_caption_fails_the_build(build):
    """A picture that nobody drew, or that says nothing, is reported."""
    _, warnings = build("```{opening} ch9_x\nWords.\n```\n")
    assert "no opening ch9_x" in warnings
    _, warnings = build("```{opening} ch5_ddp\n```\n")
    assert "needs a caption" in warnings
    html, warnings = build("```{opening} ch5_ddp\nSome *words*.\n```\n")
    assert not warnings
    assert html.count("<svg") == 2 and "Some <em>words</em>." in html
