"""The same pages without hands: EPUB and PDF."""
