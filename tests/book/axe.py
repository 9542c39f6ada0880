"""Check an open page with axe-core, light and dark, with everything unfolded.

Most of axe's time would go into contrast, which it measures for each of up to 5,000
elements on a page. Elements that share their colors, their size and their backgrounds
have the same contrast, so each such kind is measured once, on whichever page it is.
"""

from importlib.resources import files

from playwright.sync_api import Page

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text("utf8")
# Mark one element of each kind that was not measured before, for each theme; return all
# new kinds by theme. Of a text's size, axe asks only whether it is large; a link must
# also differ from the text around it, by its font or its color.
MARK = """
(known) => Object.fromEntries(Object.entries(known).map(([theme, kinds]) => {
  document.documentElement.dataset.theme = theme;
  const seen = new Set(kinds), before = seen.size, sample = `data-${theme}`;
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
    const text = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!text && !element.placeholder) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !element.checkVisibility({ visibilityProperty: true })) continue;
    const { color, fontSize, fontWeight, textDecorationLine } =
      getComputedStyle(element);
    const link = element.closest("a[href]"), size = parseFloat(fontSize);
    const look = link ? [fontSize, fontWeight, textDecorationLine,
      getComputedStyle(link.parentElement).color]
      : [size >= 24 || (size >= 18.66 && fontWeight >= 700)];
    const kind = [color, ...look, grounds(element)].join();
    if (!seen.has(kind)) (link ?? element).setAttribute(sample, "");
    if (!seen.has(kind)) element.setAttribute(sample, "");
    seen.add(kind);
  }
  return [theme, [...seen].slice(before)];
}))
"""
# Code is colored by spans without a meaning; without them axe reads a tenth as much.
# What is to be measured keeps them.
PLAIN = """
() => {
  for (const pre of document.querySelectorAll("pre")) {
    const inside = [...pre.querySelectorAll("*")];
    const plain = ({ tagName, attributes }) => tagName === "SPAN" &&
      [...attributes].every(({ name }) => name === "class");
    if (inside.every(plain)) pre.textContent = pre.textContent;
  }
}
"""
# axe measures all of a document before it looks at any element. What has neither a
# sample nor a heading is of no use to it, and what follows in the flow moves up.
PRUNE = """
([samples, where]) => {
  for (const part of document.querySelectorAll(where))
    if (!part.closest(samples) && !part.querySelector(samples)) part.remove();
}
"""
# A box that became too wide gets its tabindex two frames later, so wait for the third.
RUN = """
async ([colors, theme, where]) => {
  if (theme) document.documentElement.dataset.theme = theme;
  for (const _ of "123") await new Promise((done) => requestAnimationFrame(done));
  const options = { preload: false, iframes: false };
  if (theme) options.runOnly = colors;
  const off = colors.map((id) => [id, { enabled: false }]);
  if (!theme) options.rules = Object.fromEntries(off);
  if (!theme) options.reporter = "no-passes"; // to list them takes a third
  const found = await axe.run(where ?? document, options);
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

    def look(self, page: Page, again: bool = False) -> list[str]:
        """Return the rules that an open page breaks, with up to three elements.

        What axe has read is removed from the page, so this look at it is the last.

        Args:
            again: whether its article was looked at in another window. Then only its
                colors are measured here, and all rules hold for what is around it.
        """
        page.evaluate(AXE)
        self.looks += 1
        new = page.evaluate(MARK, self.known)
        page.evaluate(PLAIN)
        samples = ", ".join(f"[data-{theme}]" for theme in self.known)
        if again:
            page.evaluate(PRUNE, [samples, "article section > :not(h1, section)"])
        around = {"exclude": ["article"]} if again else None
        results = page.evaluate(RUN, [COLOURS, None, around])[0]
        page.evaluate(PRUNE, [samples, "section > *, li, tr"])
        for theme, kinds in new.items():
            if kinds:
                self.known[theme] += kinds
                sampled = {"include": [f"[data-{theme}]"]}
                violations, passed = page.evaluate(RUN, [COLOURS, theme, sampled])
                results += [(f"{theme}: {rule}", nodes) for rule, nodes in violations]
                self.measured += passed
        return [f"{rule}: {nodes}" for rule, nodes in results]
