"""All Ranks: live ranks, a launcher and rank arithmetic for the book."""
