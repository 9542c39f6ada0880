"""Questions that a reader answers on the page."""
