"""What a page has beyond its text: formulas, links, search, explorables."""
