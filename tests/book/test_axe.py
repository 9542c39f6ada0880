"""axe-core finds nothing on any page, light and dark, on a laptop and a phone.

Three quarters of axe's time would go into contrast, which it measures for each of up to
5,000 elements a page. Those that share their colours, their size and the grounds below
them have the same contrast, so each such kind is measured once, wherever it occurs.
"""

from importlib.resources import files

import pytest

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf8")
WIDTHS = {"laptop": (1280, 800), "phone": (390, 844)}
STILL = "* { animation: none !important; transition: none !important }"
OPEN = "document.querySelectorAll('details').forEach((box) => (box.open = true))"
# Marks one element of each kind that was not measured before; returns all new kinds.
MARK = """
([theme, known]) => {
  document.documentElement.dataset.theme = theme;
  const seen = new Set(known), before = seen.size;
  const grounds = (element) => {
    const { backgroundColor, backgroundImage, opacity } = getComputedStyle(element);
    const rest = element.parentElement ? grounds(element.parentElement) : "";
    return `${backgroundColor} ${backgroundImage} ${opacity}/${rest}`;
  };
  for (const element of document.body.querySelectorAll("*")) {
    element.removeAttribute("data-sample");
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text && !element.placeholder) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !element.checkVisibility({ visibilityProperty: true })) continue;
    const { color, fontSize, fontWeight } = getComputedStyle(element);
    const kind = [color, fontSize, fontWeight, grounds(element)].join();
    if (!seen.has(kind)) element.setAttribute("data-sample", "");
    seen.add(kind);
  }
  return [...seen].slice(before);
}
"""
# The colours of code are spans of no meaning: without them axe has a tenth to read.
PLAIN = """
() => {
  for (const pre of document.querySelectorAll("pre")) {
    const inside = [...pre.querySelectorAll("*")];
    const plain = ({ tagName, attributes }) => tagName === "SPAN" &&
      [...attributes].every(({ name }) => ["class", "data-sample"].includes(name));
    if (inside.every(plain)) pre.textContent = pre.textContent;
  }
}
"""
# What is now too wide gets its keyboard two frames later: wait for the third.
RUN = """
async (contrast) => {
  for (const _ of "123") await new Promise((done) => requestAnimationFrame(done));
  const options = { preload: false, iframes: false };
  if (contrast) options.runOnly = ["color-contrast"];
  else options.rules = { "color-contrast": { enabled: false } };
  const where = contrast ? { include: ["[data-sample]"] } : document;
  const found = await axe.run(where, options);
  return [
    found.violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map((n) => n.html)]),
    found.passes.flatMap(({ nodes }) => nodes).length,
  ];
}
"""


@pytest.mark.timeout(1500)  # twice what it takes if others keep both cores busy
def test_axe_finds_nothing(browser, http, pages):
    """Every page, and search with results; what is folded is looked at unfolded."""
    found, known, measured = [], {"light": [], "dark": []}, 0
    tab = browser.new_page()
    for width, (x, y) in WIDTHS.items():
        tab.set_viewport_size({"width": x, "height": y})
        for name in [*pages, "search.html?q=rank"]:
            tab.goto(f"{http}/{name if '.' in name else f'{name}.html'}")
            if "?" in name:
                tab.wait_for_selector("#search-results li a")
            tab.add_style_tag(content=STILL)
            tab.evaluate(OPEN)
            tab.evaluate(AXE)
            results = []
            for theme, kinds in known.items():
                if new := tab.evaluate(MARK, [theme, kinds]):
                    kinds += new
                    violations, passed = tab.evaluate(RUN, True)
                    results.append([(f"{theme}: {id_}", n) for id_, n in violations])
                    measured += passed
            tab.evaluate(PLAIN)
            results.append(tab.evaluate(RUN, False)[0])
            found += [f"{name}, {width}: {one}" for rules in results for one in rules]
    tab.close()
    assert not found, "\n".join(found)
    assert measured > 100  # otherwise it looked at nothing
