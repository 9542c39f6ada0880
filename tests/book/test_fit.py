"""Figures and tables fit a phone, a tablet and a laptop, in more than one font."""

import pytest
import yaml

from allranks.base.paths import ROOT
from tests.book.conftest import toc_pages

PAGES = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
WIDTHS = (390, 768, 1280)
WIDE_FONT = "* { font-family: 'DejaVu Serif', serif !important; }"
# What is wrong with the drawings and tables of a page, as sentences. Letters in a
# drawing may be smaller than those of the page, but not too small to read. What is
# wider than its box has to scroll within one that shows it (a shadow at its edge).
WRONG = r"""() => {
  const found = [], article = document.querySelector("article");
  const edge = article.getBoundingClientRect().right;
  const name = (e) => `${e.tagName} ${(e.getAttribute("aria-label") ?? e.textContent)
    .trim().slice(0, 40)}`;
  const scrolls = (e) => e && e !== article && (
    (getComputedStyle(e).overflowX === "auto" && e.scrollWidth > e.clientWidth + 1)
    || scrolls(e.parentElement));
  for (const e of article.querySelectorAll("svg, table, img, pre, .admonition")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const scrolled = scrolls(e);
    if (box.right > edge + 1 && !scrolled) found.push(`${name(e)} ends outside`);
    if (scrolled && e.matches("svg, img, table:not(.x-table)") && innerWidth < 500)
      found.push(`${name(e)} is cut`);
    if (e.tagName !== "svg" || e.closest(".x, .lanes")) continue;
    if (!e.getAttribute("viewBox")) found.push(`${name(e)} has no viewBox`);
    const scale = box.width / e.viewBox.baseVal.width;
    for (const text of e.querySelectorAll("text")) {
      const { left, right, top, bottom, width } = text.getBoundingClientRect();
      if (!width) continue;
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 11 || (size > 19 && text.textContent.length > 1))
        found.push(`${text.textContent} has ${size.toFixed(1)} px`);
      if (left < box.left - 1 || right > box.right + 1 || top < box.top - 1
          || bottom > box.bottom + 1)
        found.push(`${text.textContent} of ${name(e)} is clipped`);
    }
    const words = [...e.querySelectorAll("text")]
      .map((t) => [t.textContent.trim(), t.getBoundingClientRect()])
      .filter(([word, { width }]) => word && width);
    words.forEach(([one, a], i) => words.slice(i + 1).forEach(([two, b]) => {
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
          && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        found.push(`${one} of ${name(e)} lies on ${two}`);
    }));
  }
  return found;
}"""
ENDS = """() => [...new Set([...document.querySelectorAll(
  `article section > :is(p, .admonition, div[class*=highlight-], .run, .quiz)`)]
  .filter((e) => e.offsetWidth && e.checkVisibility())
  .map((e) => Math.round(e.getBoundingClientRect().right)))]"""


@pytest.fixture(scope="module")
def tab(browser):
    """Yield one tab for all pages, since each new one compiles all scripts."""
    tab = browser.new_page(reduced_motion="reduce")
    yield tab
    tab.close()


@pytest.mark.replay("{name}.html")
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_or_too_small(tab, site, name):
    """No drawing, table or code leaves its column, and no letter its drawing."""
    tab.goto((site / f"{name}.html").as_uri())
    tab.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    problems, seen = [], tab.locator("article :is(svg, table)").count()
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        problems += [f"{width} px: {one}" for one in tab.evaluate(WRONG)]
    tab.add_style_tag(content=WIDE_FONT)
    for width in (390, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        found = [one for one in tab.evaluate(WRONG) if one.endswith("clipped")]
        problems += [f"{width} px, wide font: {one}" for one in found]
    assert not problems, "\n".join(sorted(set(problems)))
    assert seen or "<table" not in (site / f"{name}.html").read_text("utf8")


def test_prose_code_and_notes_have_one_right_edge(browser, site):
    """Whatever follows each other on a page ends at the same place."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    for page in ("book/ch5_ddp", "book/app_clinic_ddp", "notebooks/ch4_ranks"):
        tab.goto(f"{site.as_uri()}/{page}.html")
        ends = tab.evaluate(ENDS)
        assert len(ends) == 1, (page, ends)
    tab.close()


def test_a_row_becomes_a_card_that_says_its_columns(browser, site):
    """On a phone a wide table is a list of cards; it is still a table to a reader."""
    tab = browser.new_page(viewport={"width": 390, "height": 800})
    tab.goto(f"{site.as_uri()}/book/ch4_ranks.html")
    table = tab.locator("table.cards").first
    row = table.locator("tr[role=row]").nth(
        1
    )  # the roles stay, though CSS has no table
    assert table.locator("thead tr th[role=columnheader]").count() == 3
    cell = row.locator("td[role=cell]").last
    assert cell.get_attribute("data-label") == "because"
    said = "cell => getComputedStyle(cell, '::before').content"
    assert cell.evaluate(said) not in ("none", "normal")
    first = row.get_by_role("cell").first.bounding_box()
    assert cell.bounding_box()["y"] >= first["y"] + first["height"]
    tab.set_viewport_size({"width": 1280, "height": 800})
    assert cell.evaluate(said) == "none"
    assert cell.bounding_box()["y"] == row.get_by_role("cell").first.bounding_box()["y"]
    tab.close()
