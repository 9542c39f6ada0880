"""Figures and tables fit a phone, a tablet and a laptop, in more than one font."""

import json
import re

from allranks import hangs
from allranks.base.paths import ROOT
from allranks.hangs import tools

WIDTHS = (1280, 768, 390)
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
ENDS = """(kinds) => [...new Set([...document.querySelectorAll(
  `article section > :is(${kinds})`)]
  .filter((e) => e.offsetWidth && e.checkVisibility())
  .map((e) => Math.round(e.getBoundingClientRect().right)))]"""
PROSE, CODE = (
    "p:not(.case-kind, .specimen-foot), .admonition:not(:has(pre))",
    "div[class*=highlight-], .run, .quiz",
)
# The letters of each line of prose that another line follows.
LINES = """() => [...document.querySelectorAll("article section > p")].flatMap((p) => {
  const lines = new Map(), texts = document.createTreeWalker(p, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let text; (text = texts.nextNode());)
    for (let i = 0; i < text.length; i++) {
      range.setStart(text, i);
      range.setEnd(text, i + 1);
      const [box] = range.getClientRects(), line = box && Math.round(box.bottom / 8);
      if (box) lines.set(line, (lines.get(line) ?? 0) + 1);
    }
  return [...lines.values()].slice(0, -1);
})"""


def cut_or_too_small(tab) -> list[str]:
    """Return which drawing, table or code leaves its column, and which letter is small.

    The visits of ``tests/book/test_pages.py`` ask each page for it.
    """
    problems = []
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 900})
        problems += [f"{width} px: {one}" for one in tab.evaluate(WRONG)]
    tab.add_style_tag(content=WIDE_FONT)
    for width in (390, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        found = [one for one in tab.evaluate(WRONG) if one.endswith("clipped")]
        problems += [f"{width} px, wide font: {one}" for one in found]
    return sorted(set(problems))


def test_prose_has_one_right_edge_and_code_another(browser, site):
    """What is read ends at one place, and what gains by more room at another."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    for page in ("book/ch5_ddp", "book/ch4_ranks", "book/ch7_collectives"):
        tab.goto(f"{site.as_uri()}/{page}.html")
        (prose,), (code,) = (tab.evaluate(ENDS, kinds) for kinds in (PROSE, CODE))
        assert prose < code, page
    for page in ("book/app_clinic_ddp", "notebooks/ch4_ranks"):
        tab.goto(f"{site.as_uri()}/{page}.html")
        assert len(tab.evaluate(ENDS, PROSE)) == 1, page
    tab.close()


def test_a_line_of_prose_has_at_most_75_letters(browser, site):
    """The mean of the full lines does, and none has many more."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    for page in ("book/ch5_ddp", "book/ch7_collectives", "book/app_clinic_ddp"):
        tab.goto(f"{site.as_uri()}/{page}.html")
        lines = tab.evaluate(LINES)
        assert len(lines) > 50
        assert sum(lines) / len(lines) <= 75 and max(lines) < 92, page
    tab.close()


def test_a_long_name_in_the_contents_of_a_page_breaks(browser, site):
    """No entry of "On this page" is cut at the window's edge."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(f"{site.as_uri()}/book/app_clinic_hangs.html")
    wide = """() => [...document.querySelectorAll(".page-toc .nav-link .pre")]
      .map((e) => [e.textContent,
        Math.max(...[...e.getClientRects()].map((r) => r.right))
        - e.closest(".bd-sidebar-secondary").getBoundingClientRect().right])"""
    ends = tab.evaluate(wide)
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in dict(ends)
    assert [end for end in ends if end[1] > 0] == []
    tab.close()


def test_the_gallery_is_a_strict_grid(browser, site):
    """Three rows of three pictures of one size, and one column of them on a phone."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(f"{site.as_uri()}/book/ch4_ranks.html")
    boxes = """() => [...document.querySelectorAll(
        ".gallery svg, .gallery .sd-col > p:first-of-type > code:first-child")]
      .map((e) => [e.localName, e.getBoundingClientRect()])
      .map(([name, { x, y, width, height }]) =>
        [name, ...[x, y, width, height].map(Math.round)])"""
    for width, columns in (1280, 3), (390, 1):
        tab.set_viewport_size({"width": width, "height": 900})
        found = tab.evaluate(boxes)
        pictures = [box[1:] for box in found if box[0] == "svg"]
        calls = [box[1:] for box in found if box[0] == "code"]
        assert len(pictures) == len(calls) == 9
        assert len({box[0] for box in pictures}) == columns
        assert len({box[1] for box in pictures}) == 9 // columns
        assert len({tuple(box[2:]) for box in pictures}) == 1
        assert len({box[1] for box in calls}) == 9 // columns
        assert min(c[1] - p[1] - p[3] for p, c in zip(pictures, calls, strict=True)) > 0
    tab.close()


def test_the_heat_map_of_hangs_stays_a_table(browser, site):
    """Its columns can be compared on a phone; a tap shows the seconds of a cell."""
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(f"{site.as_uri()}/book/app_clinic_hangs.html")
    table = tab.locator("table.hang-table").first
    box = table.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    heads = table.locator("thead th").all()[1:]
    assert len(heads) == len(tools.TOOLS) - 1  # live ranks are no tool for a job
    middles = [h.bounding_box()["x"] + h.bounding_box()["width"] / 2 for h in heads]
    measured = json.loads((ROOT / hangs.DATA).read_text("utf8"))["hangs"]
    rows = table.locator("tbody tr:not(:last-child)").all()
    assert len(rows) > 10
    for row in rows:
        slug = row.locator("a").get_attribute("href").partition("#clinic-")[2]
        cells = row.locator("td").all()
        for cell, middle in zip(cells, middles, strict=True):
            place = cell.bounding_box()
            assert abs(place["x"] + place["width"] / 2 - middle) < 1
        said = [cell.inner_text() for cell in cells]
        kinds = [key for key in tools.TOOLS if key != "live_ranks"]
        for text, key in zip(said, kinds, strict=True):
            one = measured[slug][key]
            assert text.split()[1].startswith(one["verdict"]), (slug, key, text)
            seconds = one.get("seconds")
            assert seconds is None or f"after {seconds:.1f} s" in text
    for total in table.locator("tbody tr:last-child td").all():
        assert re.fullmatch(r"\d+/\d+", total.inner_text().strip())
        assert total.evaluate("e => e.scrollWidth <= e.clientWidth"), "it runs over"
    tip = rows[0].locator(".hang-tip").first
    opacity = "tip => getComputedStyle(tip).opacity"
    assert tip.evaluate(opacity) == "0"
    rows[0].locator("td").first.hover()
    assert tip.evaluate(opacity) == "1"
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
