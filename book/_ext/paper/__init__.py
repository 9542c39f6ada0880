"""The same pages for readers who cannot click: EPUB and PDF."""
