"""Visit a page in a real browser, and look at everything that tests check there.

Loading a page costs more than most looks at it, so a test that needs to see every page
does so during the visits of ``tests/book/test_pages.py``.
"""

from playwright.sync_api import Browser, Page, Request

from tests.book import deserts

STILL = (
    "*, ::before, ::after { animation: none !important; transition: none !important }"
)
WIDTHS = {"phone": (390, 844), "laptop": (1280, 800)}
# Measure first what moved while the page loaded. Then unfold answers and hints, because
# they must fit into the window too.
LOOK = """
async () => {
  const painted = () =>
    new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
  const count = (selector) => document.querySelectorAll(selector).length;
  let shift = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) shift += entry.value;
  }).observe({ type: "layout-shift", buffered: true });
  await painted();
  await new Promise((done) => setTimeout(done));
  const moved = shift;
  document.querySelector(".predict-all")?.click();
  for (const box of document.querySelectorAll("details")) box.open = true;
  await painted();
  const parts = [document.documentElement, ...document.querySelectorAll(
    "main, .bd-article-container, .bd-article")];
  const wide = parts.filter((e) => e.scrollWidth > Math.min(e.clientWidth, innerWidth));
  const cut = [], range = document.createRange();
  const whole = "table:not(.specimen-table) td code, .prev-next-title";
  for (const part of document.querySelectorAll(whole)) {
    const texts = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) cut.push(word[0]);
      }
    }
  }
  return {
    moved,
    cut,
    wide: wide.map((e) =>
      `${e.tagName}.${e.className}: ${e.scrollWidth} > ${e.clientWidth}`),
    theme: document.documentElement.dataset.theme,
    blocks: count(":not(.output, .no-copy) > div.highlight > pre"),
    buttons: count("div.highlight > button.copybtn"),
  };
}
"""


class Visitor:
    """A reader's window, with what its pages ask for and complain about."""

    def __init__(self, browser: Browser, base: str, theme: str, width: str):
        self.size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.base, self.theme, self.width = base, theme, width
        self.context = browser.new_context(viewport=self.size, color_scheme=theme)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("request", self.hear)
        self.page.on("console", self.listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.asked: set[str] = set()

    def hear(self, request: Request) -> None:
        """Keep each request, and complain if it isn't for one of the site's files."""
        self.asked.add(request.url)
        if not request.url.startswith((f"{self.base}/", "data:", "blob:")):
            self.complaints.append(f"asked the network for {request.url}")

    def listen(self, message) -> None:
        """Keep the console's errors and warnings."""
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, page: str) -> dict:
        """Load a page such as ``book/ch5_ddp.html``, unfold it, and look at it."""
        self.complaints.clear(), self.asked.clear()
        self.page.set_viewport_size(self.size)
        self.page.goto(f"{self.base}/{page}")
        folded = deserts.look(self.page) if self.width == "laptop" else {}
        look = folded | self.page.evaluate(LOOK)
        self.complaints += [f"too wide: {text}" for text in look["wide"]]
        self.complaints += [f"cut in two: {word}" for word in look["cut"]]
        return look

    def stop_motion(self) -> None:
        """Stop animations, which would look different each time."""
        self.page.add_style_tag(content=STILL)

    def close(self) -> None:
        """Close the window."""
        self.context.close()
