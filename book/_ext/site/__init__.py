"""What a page has besides its text: formulas, links, search, explorables."""
