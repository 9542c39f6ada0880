// What the theme's scripts leave out.

// Opened from a folder, a page may not read other pages: search shows titles only.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// A formula or a result that is too wide scrolls: let the keyboard scroll it too.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".formula, .text_html")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
});
