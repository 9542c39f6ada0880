"""Check an open page with axe-core, light and dark, with everything unfolded.

Most of axe's time would go into contrast, which it measures for each of up to 5,000
elements on a page. Elements that share their colours, their size and their backgrounds
have the same contrast, so each such kind is measured once, on whichever page it is.
"""

from importlib.resources import files

from playwright.sync_api import Page

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf8")
# Mark one element of each kind that was not measured before; return all new kinds.
MARK = """
([theme, known]) => {
  document.documentElement.dataset.theme = theme;
  const seen = new Set(known), before = seen.size;
  const below = new Map([[null, ""]]);
  const grounds = (element) => {
    if (!below.has(element)) {
      const { backgroundColor, backgroundImage, opacity } = getComputedStyle(element);
      const own = `/${backgroundColor} ${backgroundImage} ${opacity}`;
      const clear = own === "/rgba(0, 0, 0, 0) none 1"; // it changes nothing
      below.set(element, `${clear ? "" : own}${grounds(element.parentElement)}`);
    }
    return below.get(element);
  };
  for (const element of document.body.querySelectorAll("*")) {
    element.removeAttribute("data-sample");
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text && !element.placeholder) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !element.checkVisibility({ visibilityProperty: true })) continue;
    const { color, fontSize, fontWeight, textDecorationLine } =
      getComputedStyle(element);
    // A link must also differ from the text around it.
    const link = element.closest("a[href]");
    const around = link ? getComputedStyle(link.parentElement).color : "";
    const look = [color, fontSize, fontWeight, textDecorationLine, around];
    const kind = [...look, grounds(element)].join();
    if (!seen.has(kind)) (link ?? element).setAttribute("data-sample", "");
    if (!seen.has(kind)) element.setAttribute("data-sample", "");
    seen.add(kind);
  }
  return [...seen].slice(before);
}
"""
# Code is coloured by spans without a meaning; without them axe reads a tenth as much.
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
# A box that became too wide gets its tabindex two frames later, so wait for the third.
RUN = """
async ([colours, contrast]) => {
  for (const _ of "123") await new Promise((done) => requestAnimationFrame(done));
  const options = { preload: false, iframes: false };
  if (contrast) options.runOnly = colours;
  const off = colours.map((id) => [id, { enabled: false }]);
  if (!contrast) options.rules = Object.fromEntries(off);
  if (!contrast) options.reporter = "no-passes"; // to list them takes a third
  const where = contrast ? { include: ["[data-sample]"] } : document;
  const found = await axe.run(where, options);
  return [
    found.violations.map(({ id, nodes }) => [id, nodes.slice(0, 3).map((n) => n.html)]),
    (found.passes ?? []).flatMap(({ nodes }) => nodes).length,
  ];
}
"""
COLOURS = ["color-contrast", "link-in-text-block"]


class Axe:
    """axe-core, and the kinds of text whose contrast it has already measured."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {"light": [], "dark": []}
        self.looks = self.measured = 0  # pages; elements with enough contrast

    def look(self, page: Page) -> list[str]:
        """Return the rules that an open page breaks, with up to three elements."""
        page.evaluate(AXE)
        self.looks += 1
        results = []
        for theme, kinds in self.known.items():
            if new := page.evaluate(MARK, [theme, kinds]):
                kinds += new
                violations, passed = page.evaluate(RUN, [COLOURS, True])
                results += [(f"{theme}: {rule}", nodes) for rule, nodes in violations]
                self.measured += passed
        page.evaluate(PLAIN)
        results += page.evaluate(RUN, [COLOURS, False])[0]
        return [f"{rule}: {nodes}" for rule, nodes in results]
