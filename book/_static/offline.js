// Opened from a folder, a page may not read other pages: search shows titles only.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
