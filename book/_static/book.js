// What the theme's scripts lack, and what the book needs of their 82 KB of Bootstrap.

// The search and its index (300 KB) load when a reader first goes to a search field.
(() => {
  const folder = globalThis.allRanksFolder = new URL(".", document.currentScript.src).href;
  const load = () => {
    removeEventListener("focusin", look);
    const style = document.createElement("link");
    Object.assign(style, { rel: "stylesheet", href: `${folder}search.css` });
    document.head.append(style);
    for (const name of ["minisearch.js", "search_index.js", "search.js", "search_box.js"]) {
      const script = document.createElement("script");
      Object.assign(script, { src: folder + name, async: false }); // in this order
      document.head.append(script);
    }
  };
  const look = (event) => event.target.closest?.(".bd-search") && load();
  addEventListener("focusin", look);
  if (document.getElementById("search-results")) load();
})();

// What is too wide scrolls, so the keyboard must be able to scroll it too. Explorables
// redraw themselves, so this looks again after each change of the page.
(() => {
  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(reach);
  };
  const sizes = new ResizeObserver(soon); // what was folded has no size until it opens
  const reach = () => {
    const wide = ".formula, .text_html, .x-scroll, .exercise-help pre";
    for (const box of document.querySelectorAll(wide)) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      if (!box.watched) sizes.observe(box); // each call triggers reach: never repeat it
      box.watched = true;
    }
  };
  addEventListener("load", reach);
  const main = document.getElementById("main-content");
  if (main) new MutationObserver(soon).observe(main, { childList: true, subtree: true });
})();

// "On this page" marks the section that is being read, and those around it.
(() => {
  const links = [...document.querySelectorAll("nav.page-toc .nav-link")];
  const parts = links.map((link) => document.getElementById(decodeURIComponent(link.hash.slice(1))));
  if (!links.length) return;
  let current;
  const mark = () => {
    const bottom = innerHeight + scrollY >= document.documentElement.scrollHeight - 2;
    const line = bottom ? innerHeight : innerHeight * 0.35;
    const at = parts.findLastIndex((part) => part && part.getBoundingClientRect().top <= line);
    if (at === current) return;
    current = at;
    for (const link of links) {
      link.classList.remove("active");
      link.removeAttribute("aria-current");
      link.parentElement.classList.remove("active");
    }
    let item = links[at]?.parentElement;
    const box = item?.closest(".bd-sidebar-secondary");
    if (box) { // the list may be longer than the window: scroll it, but not the page
      const { top, height } = box.getBoundingClientRect();
      const link = links[at].getBoundingClientRect();
      if (link.top < top || link.bottom > top + height)
        box.scrollTop += link.top - top - height / 2;
    }
    links[at]?.setAttribute("aria-current", "true");
    for (; item; item = item.parentElement.closest(".toc-entry")) {
      item.classList.add("active");
      item.querySelector(".nav-link").classList.add("active");
    }
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      mark();
    });
  }, { passive: true });
  mark();
})();

// The button that leads back to the top shows only while the reader scrolls up.
(() => {
  const button = document.getElementById("pst-back-to-top");
  let before = scrollY;
  button?.addEventListener("click", () => scrollTo(0, 0));
  addEventListener("scroll", () => {
    const show = scrollY < before && scrollY > innerHeight;
    if (button) button.style.display = show ? "block" : "none";
    before = scrollY;
  }, { passive: true });
})();

// Print in light colors and with everything unfolded, since paper is white and nobody
// can click on it.
(() => {
  const page = document.documentElement.dataset;
  const boxes = () => [...document.querySelectorAll("article details")];
  let theme, wasOpen = []; // by place, since an explorable draws anew for another width
  addEventListener("beforeprint", () => {
    theme = page.theme;
    page.theme = "light";
    wasOpen = boxes().map((box) => box.open);
    for (const box of boxes()) box.open = true;
  });
  addEventListener("afterprint", () => {
    page.theme = theme;
    boxes().forEach((box, i) => { box.open = wasOpen[i]; });
  });
})();
