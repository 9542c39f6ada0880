// What the theme's scripts leave out, and what their 82 KB of Bootstrap did here.

// Opened from a folder, a page may not read other pages: search shows titles only.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// What is too wide scrolls: let the keyboard scroll it too. Explorables draw anew.
(() => {
  const reach = () => {
    for (const box of document.querySelectorAll(".formula, .text_html, .x-scroll")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(reach);
  };
  addEventListener("load", reach);
  addEventListener("resize", soon);
  const main = document.getElementById("main-content");
  if (main) new MutationObserver(soon).observe(main, { childList: true, subtree: true });
})();

// Menus: a click or Escape closes what a click opened; arrows walk through.
(() => {
  const opened = () => document.querySelector('[data-bs-toggle="dropdown"][aria-expanded="true"]');
  const set = (button, open) => {
    button.setAttribute("aria-expanded", open);
    button.parentElement.querySelector(".dropdown-menu").classList.toggle("show", open);
  };
  addEventListener("click", (event) => {
    const button = event.target.closest?.('[data-bs-toggle="dropdown"]');
    const last = opened();
    if (last) set(last, false);
    if (button && button !== last) set(button, true);
  });
  addEventListener("keydown", (event) => {
    const button = opened();
    if (!button) return;
    const items = [...button.parentElement.querySelectorAll(".dropdown-item")];
    const at = items.indexOf(document.activeElement);
    if (event.key === "Escape") {
      set(button, false);
      button.focus();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? at + 1 : Math.max(at, 0) - 1;
      items.at(step % items.length)?.focus();
    } else if (event.key === "Tab") {
      set(button, false);
    }
  });
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

// The way back to the top shows while scrolling up.
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
