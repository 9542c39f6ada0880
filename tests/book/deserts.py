"""How far a reader scrolls without a picture, or something to try.

``python -m tests.book.deserts [SITE]`` prints the longest stretch of each page of a
built book, in screens of 800 px at a width of 1280, with all folds closed.

What counts: a drawing or an image of some size, an explorable, a listing with numbered
callouts, a form of the clinic that answers, and in a notebook an exercise, or the form
that hides a result until one has guessed it. What does not: tables, formulas,
terminals, listings without callouts, quizzes, and whatever is folded.
"""

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page

WIDTH, SCREEN = 1280, 800  # px
MOST = 6  # screens
LOOK = """
async ([least]) => {
  await document.fonts.ready;
  await new Promise((done) => setTimeout(done, 50));
  const article = document.querySelector("article");
  const box = (e) => e.getBoundingClientRect();
  const drawn = (e) => box(e).width >= 2 * least && box(e).height >= least
    && !e.closest("summary, button, .quiz, .formula, .MathJax, nav");
  const counts = ".explorable-box, .x, .callouts, .diagnose, .symptoms, "
    + ".predict-ask, .exercise-help";
  const found = [...article.querySelectorAll(`svg, img, ${counts}`)]
    .filter((e) => e.checkVisibility()
      && (e.matches(counts) ? box(e).height : drawn(e)))
    .map((e) => [box(e).top + scrollY, box(e).bottom + scrollY])
    .sort((a, b) => a[0] - b[0]);
  const parts = [...article.children].filter((e) => e.checkVisibility());
  const begin = box(article).top + scrollY;
  const end = Math.max(...parts.map((e) => box(e).bottom + scrollY));
  const headings = [...article.querySelectorAll("h1, h2, h3")]
    .map((e) => [box(e).top + scrollY, e.firstChild?.textContent.trim() ?? ""]);
  let at = begin, gaps = [];
  for (const [top, bottom] of [...found, [end, end]]) {
    const last = headings.filter(([y]) => y <= at + 40).pop()?.[1] ?? "";
    if (top > at) gaps.push([top - at, at - begin, last]);
    at = Math.max(at, bottom);
  }
  return { height: end - begin, number: found.length, gaps };
}
"""


def measure(browser: Browser, site: Path, pages: list[str]) -> dict[str, dict]:
    """Return what is found on each page."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": SCREEN})
    found = {}
    for page in pages:
        tab.goto(f"{site.as_uri()}/{page}.html")
        found[page] = look(tab)
    tab.close()
    return found


def look(tab: Page) -> dict:
    """Return the height of an open page, its pictures, and its gaps, all in screens.

    A gap is (screens without anything that counts, where it begins, the last heading).
    """
    seen = tab.evaluate(LOOK, [48])
    gaps = ((size / SCREEN, at / SCREEN, head) for size, at, head in seen["gaps"])
    return {
        "screens": seen["height"] / SCREEN,
        "pictures": seen["number"],
        "gaps": sorted(gaps, reverse=True),
    }


def table(found: dict[str, dict], most: int = 1) -> str:
    """Write a line for each page, and one for each of its longest gaps."""
    lines = [f"{'page':34}{'screens':>8}{'pictures':>9}  longest stretch without"]
    for page, one in found.items():
        head = f"{page:34}{one['screens']:8.1f}{one['pictures']:9d}"
        for size, at, heading in one["gaps"][:most] or [(0, 0, "")]:
            lines.append(f"{head}  {size:4.1f} from {at:.1f}: {heading}")
            head = " " * 51
    return "\n".join(lines)


if __name__ == "__main__":
    import yaml
    from playwright.sync_api import sync_playwright

    from allranks.base.paths import ROOT
    from book._tools.browser import find
    from tests.book.conftest import FLAGS, toc_pages

    built = Path(sys.argv[1] if sys.argv[1:] else ROOT / "_build/html").resolve()
    all_pages = toc_pages(yaml.safe_load((ROOT / "_toc.yml").read_text("utf8")))
    wanted = sys.argv[2:] or [p for p in all_pages if (built / f"{p}.html").exists()]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find(), args=FLAGS)
        print(table(measure(chromium, built, wanted), 1 if len(wanted) > 12 else 9))
        chromium.close()
